use std::io::{self, Read};

use proptest::prelude::*;
use sha2::{Digest, Sha256};

use super::{Decoder, EncodeError, Encoder, Error, Event, EventKind, LARGEST_EVENT, Positioned};
use crate::trailer;

fn with_hash(json: &str) -> Vec<u8> {
    let mut bytes = json.as_bytes().to_vec();
    bytes.extend_from_slice(&Sha256::digest(json));
    bytes
}

fn decode(bytes: impl Read) -> Result<Vec<Positioned>, Error> {
    let mut decoder = Decoder::new(bytes);
    let mut events = Vec::new();
    while let Some(event) = decoder.next_event()? {
        events.push(event);
    }
    assert!(decoder.sha256().is_some());
    Ok(events)
}

fn encode(events: &[Event]) -> Vec<u8> {
    let mut encoder = Encoder::new(Vec::new());
    for event in events {
        encoder.push(event).unwrap();
    }
    let (bytes, summary) = encoder.finish().unwrap();
    assert_eq!(summary.len, bytes.len() as u64);
    assert_eq!(summary.events, events.len() as u64);
    bytes
}

fn put(revision: i64, key: &[u8], value: &[u8]) -> Event {
    let (key, value) = (key.to_vec(), value.to_vec());
    let time = Some(jiff::Timestamp::UNIX_EPOCH);
    Event {
        key,
        value,
        mod_revision: revision,
        create_revision: revision,
        version: 1,
        time,
        ..Event::default()
    }
}

/// What Go's encoder makes of the same events, byte for byte.
#[test]
fn the_json_is_that_of_go() {
    let time = Some("2024-05-01T08:00:00.123456789Z".parse().unwrap());
    let mut first = Event {
        create_revision: 7,
        version: 2,
        lease: 9_007_199_254_740_993,
        time,
        ..put(9, b"/a", b"x")
    };
    first.lease_ttl = Some(60);
    let delete = Event {
        kind: EventKind::Delete,
        key: b"/a".to_vec(),
        mod_revision: 10,
        time,
        ..Event::default()
    };
    let json = concat!(
        r#"[{"etcdEvent":{"kv":{"key":"L2E=","create_revision":7,"mod_revision":9,"version":2,"value":"eA==","#,
        r#""lease":9007199254740993}},"time":"2024-05-01T08:00:00.123456789Z","leaseTTL":60},"#,
        r#"{"etcdEvent":{"type":1,"kv":{"key":"L2E=","mod_revision":10}},"time":"2024-05-01T08:00:00.123456789Z"}]"#,
    );
    assert_eq!(encode(&[first.clone(), delete.clone()]), with_hash(json));
    let decoded = decode(&with_hash(json)[..]).unwrap();
    assert_eq!(
        decoded,
        [
            Positioned { sub: 0, event: first },
            Positioned {
                sub: 0,
                event: delete
            }
        ]
    );
}

#[test]
fn places_are_counted_within_a_revision() {
    let bytes = encode(&[
        put(5, b"a", b""),
        put(5, b"b", b""),
        put(5, b"c", b""),
        put(7, b"a", b""),
    ]);
    let subs: Vec<i64> = decode(&bytes[..]).unwrap().iter().map(|one| one.sub).collect();
    assert_eq!(subs, [0, 1, 2, 0]);
}

#[test]
fn order_is_kept_when_written_and_when_read() {
    let mut encoder = Encoder::new(Vec::new());
    encoder.push(&put(5, b"a", b"")).unwrap();
    assert!(matches!(
        encoder.push(&put(4, b"a", b"")),
        Err(EncodeError::Order { last: 5, found: 4 })
    ));
    assert!(matches!(
        Encoder::new(Vec::new()).push(&put(0, b"a", b"")),
        Err(EncodeError::Order { .. })
    ));
    assert!(matches!(
        Encoder::new(Vec::new()).finish(),
        Err(EncodeError::Empty)
    ));
    let swapped = r#"[{"etcdEvent":{"kv":{"mod_revision":5}}},{"etcdEvent":{"kv":{"mod_revision":4}}}]"#;
    assert!(matches!(
        decode(&with_hash(swapped)[..]),
        Err(Error::Order {
            last: 5,
            found: 4,
            ..
        })
    ));
}

/// Unknown fields of every kind, white space, escapes, any offset of the time, the largest and smallest integers.
#[test]
fn what_other_writers_may_do_is_read() {
    let json = r#" [ {"x":{"a":[1,-2.5e3,true,null,"}\"]"]},"time":"2026-03-01T12:00:00+05:30", "etcdEvent" : {"prev_kv":null,
        "kv": {"key":"YQ=\u003d","mod_revision": 9223372036854775807,"version":1,"lease":-9223372036854775808,"y":[]}}, "leaseTTL":7 } ]
        "#;
    let decoded = decode(&with_hash(json)[..]).unwrap();
    let event = &decoded[0].event;
    assert_eq!(
        (&event.key[..], event.mod_revision, event.lease),
        (&b"a"[..], i64::MAX, i64::MIN)
    );
    assert_eq!(event.time, Some("2026-03-01T06:30:00Z".parse().unwrap()));
    assert_eq!(event.lease_ttl, Some(7));
}

#[test]
fn malformed_json_is_refused_with_its_place() {
    let element = |kv: &str| format!(r#"[{{"etcdEvent":{{"kv":{{{kv}}}}}}}]"#);
    let cases = [
        ("{}".to_owned(), 0),
        ("[".to_owned(), 1),
        ("[]]".to_owned(), 2),
        ("[{}]".to_owned(), 3),
        (r#"[{"etcdEvent":{}}]"#.to_owned(), 16),
        (r#"[{"etcdEvent":null}]"#.to_owned(), 14),
        (
            r#"[{"etcdEvent":{"type":2,"kv":{"mod_revision":1}}}]"#.to_owned(),
            23,
        ),
        (element(r#""mod_revision":1.5"#), 37),
        (element(r#""mod_revision":9223372036854775808"#), 55),
        (element(r#""mod_revision":"1""#), 36),
        (element(r#""mod_revision":"#), 36),
        (element(r#""key":"YQ","mod_revision":1"#), 31),
        (element(r#""key":"YQ==YQ==","mod_revision":1"#), 28),
        (element(r#""key":"Y!==","mod_revision":1"#), 28),
        (element(r#""key":"YQ==" "mod_revision":1"#), 34),
        (element(r#""key":"\x","mod_revision":1"#), 30),
    ];
    for (json, place) in cases {
        match decode(&with_hash(&json)[..]) {
            Err(Error::Malformed { at, .. }) => assert_eq!(at, place, "{json}"),
            other => panic!("{json}: {other:?}"),
        }
    }
}

/// A cut delta is malformed as well, but what a person must hear is that it is damaged.
#[test]
fn damage_is_called_so() {
    let bytes = encode(&[put(5, b"a", b"some value"), put(6, b"b", b"another")]);
    for keep in 33..bytes.len() {
        let error = decode(&bytes[..keep]).unwrap_err();
        assert!(
            matches!(error, Error::Damaged(trailer::Error::Mismatch { .. })),
            "{keep}: {error}"
        );
    }
    assert!(matches!(
        decode(&bytes[..32]),
        Err(Error::Damaged(trailer::Error::TooShort { .. }))
    ));
}

#[test]
fn errors_of_the_reader_come_through() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::from(io::ErrorKind::ConnectionReset))
        }
    }
    let bytes = encode(&[put(5, b"a", b"some value")]);
    let error = decode((&bytes[..60]).chain(Broken)).unwrap_err();
    assert!(
        matches!(error, Error::Damaged(trailer::Error::Read { at: 28, .. })),
        "{error:?}"
    );
}

/// A value longer than every buffer on the way.
#[test]
fn large_values_come_back_whole() {
    #[expect(clippy::cast_possible_truncation, reason = "any bytes will do")]
    let value: Vec<u8> = (0..3_000_001_u32).map(|at| (at >> 3) as u8 ^ at as u8).collect();
    let events = [put(2, b"k", &value), put(3, b"l", b"")];
    let decoded = decode(&encode(&events)[..]).unwrap();
    assert!(decoded[0].event == events[0]);
    assert_eq!(decoded[1].event, events[1]);
}

/// Hands out one to three bytes at a time, so that every token crosses a border.
struct Trickle<'a>(&'a [u8]);

impl Read for Trickle<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let count = (1 + self.0.len() % 3).min(self.0.len()).min(out.len());
        out[..count].copy_from_slice(&self.0[..count]);
        self.0 = &self.0[count..];
        Ok(count)
    }
}

prop_compose! {
    fn any_event()(
        delete in any::<bool>(),
        key in proptest::collection::vec(any::<u8>(), 0..40),
        value in proptest::collection::vec(any::<u8>(), 0..300),
        (create_revision, version, lease) in any::<(i64, i64, i64)>(),
        lease_ttl in any::<Option<i64>>(),
        seconds in 0_i64..4_000_000_000,
        step in 0_i64..3,
    ) -> Event {
        let kind = if delete { EventKind::Delete } else { EventKind::Put };
        let time = jiff::Timestamp::new(seconds, 5).ok();
        Event { kind, key, value, create_revision, mod_revision: step, version, lease, lease_ttl, time }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(mut events in proptest::collection::vec(any_event(), 1..30)) {
        let mut revision = 1;
        for event in &mut events {
            revision += event.mod_revision;
            event.mod_revision = revision;
        }
        let bytes = encode(&events);
        let decoded = decode(Trickle(&bytes)).unwrap();
        prop_assert_eq!(decoded.into_iter().map(|one| one.event).collect::<Vec<_>>(), events);
    }

    /// Whatever stands in a delta whose hash is right: an answer or an error, never a hang or a panic.
    #[test]
    fn any_text_gets_an_answer(json in r#"[\[\]{}",:\\a-z0-9=._-]{0,120}"#) {
        let _ = decode(&with_hash(&json)[..]);
    }
}

/// What checks a delta and what restores it draw the line at the same place, and the checking one holds nothing.
#[test]
fn an_event_is_as_large_with_and_without_contents() {
    for (key, value, fits) in [
        (10, LARGEST_EVENT - 10, true),
        (11, LARGEST_EVENT - 10, false),
        (LARGEST_EVENT, 1, false),
    ] {
        let mut text = br#"[{"etcdEvent":{"kv":{"key":""#.to_vec();
        base64_simd::STANDARD.encode_append(vec![b'k'; key], &mut text);
        text.extend_from_slice(br#"","mod_revision":7,"value":""#);
        base64_simd::STANDARD.encode_append(vec![b'v'; value], &mut text);
        text.extend_from_slice(br#""}}}]"#);
        let hash = Sha256::digest(&text);
        text.extend_from_slice(&hash);
        let mut whole = Decoder::new(&text[..]);
        let mut checked = Decoder::without_contents(&text[..]);
        match (whole.next_event(), checked.next_event()) {
            (Ok(Some(whole)), Ok(Some(checked))) if fits => {
                assert_eq!((whole.event.key.len(), whole.event.value.len()), (key, value));
                assert_eq!((checked.event.key.len(), checked.event.value.len()), (0, 0));
                assert!(checked.event.value.capacity() < 1 << 20);
                assert_eq!(checked.event.mod_revision, 7);
            }
            (Err(Error::TooLarge { .. }), Err(Error::TooLarge { .. })) if !fits => {}
            other => panic!("{key}, {value}: {:?}", other.0.map(drop)),
        }
    }
    let event = Event {
        value: vec![0; LARGEST_EVENT],
        key: b"k".to_vec(),
        mod_revision: 3,
        ..Event::default()
    };
    let mut encoder = Encoder::new(std::io::sink());
    assert!(matches!(
        encoder.push(&event),
        Err(EncodeError::TooLarge { revision: 3, .. })
    ));
}
