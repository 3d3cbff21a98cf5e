//! What a refusal means, where the server's words alone don't say what to change: region, clock, redirect, checksums.

use http::{HeaderMap, StatusCode, header};
use jiff::{SignedDuration, Timestamp};
use object_store::client::HttpRequest;

use crate::{
    error::Class,
    failure::Document,
    request::{text, time},
};

/// Clocks that differ by less are accepted by all stores.
const SKEW: SignedDuration = SignedDuration::from_mins(5);

/// What is known of a request when it is refused.
#[derive(Debug, Clone)]
pub(crate) struct Asked<'a> {
    /// The region that it was signed for, of S3.
    pub region: Option<&'a str>,
    /// Whether it carried checksums that not all servers know.
    pub has_checksum: bool,
    /// When the answer came.
    pub now: Timestamp,
}

impl<'a> Asked<'a> {
    pub(crate) fn new(request: &HttpRequest, region: Option<&'a str>) -> Self {
        let headers = request.headers().keys();
        let mut names = headers.map(http::HeaderName::as_str);
        let in_document = || {
            let body = request
                .body()
                .as_bytes()
                .map_or(&[][..], |body| &body[..body.len().min(4096)]);
            body.starts_with(b"<Complete") && body.windows(8).any(|word| word == b"Checksum")
        };
        Self {
            region,
            has_checksum: names.any(|name| name.starts_with("x-amz-checksum-")) || in_document(),
            now: Timestamp::now(),
        }
    }
}

/// What is to be said besides the server's own words, and the class that fits better than theirs.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Explanation {
    pub class: Option<Class>,
    pub hint: String,
}

impl Explanation {
    fn of(class: Class, hint: String) -> Self {
        Self {
            class: Some(class),
            hint,
        }
    }

    pub(crate) fn find(
        asked: &Asked<'_>,
        status: StatusCode,
        headers: &HeaderMap,
        document: &Document,
    ) -> Self {
        let sure = clock(asked, status, headers, document)
            .or_else(|| redirect(asked, status, headers, document))
            .or_else(|| region(asked, headers, document));
        sure.unwrap_or_else(|| {
            let perhaps = [bare(asked, status, document), checksums(asked, status, document)];
            Self {
                class: None,
                hint: perhaps.into_iter().flatten().collect::<Vec<_>>().join("; "),
            }
        })
    }
}

fn clock(
    asked: &Asked<'_>,
    status: StatusCode,
    headers: &HeaderMap,
    document: &Document,
) -> Option<Explanation> {
    // How S3, Azure and Google say it, besides things that have nothing to do with clocks.
    let may_be = matches!(
        document.code.as_str(),
        "" | "AuthenticationFailed"
            | "SignatureDoesNotMatch"
            | "InvalidSignature"
            | "RequestExpired"
            | "invalid_grant"
    );
    let says_so = document.code == "RequestTimeTooSkewed";
    let may_be = may_be && matches!(status.as_u16(), 400 | 401 | 403);
    if !says_so && !may_be {
        return None;
    }
    let skew = time(headers, "date").map(|date| date.duration_since(asked.now));
    let skew = SignedDuration::from_secs(skew.map_or(0, |skew| skew.as_secs()));
    if !says_so && skew.abs() < SKEW {
        return None;
    }
    let hint = if skew.is_zero() {
        "this machine's clock and the store's differ too much: set it by NTP".to_owned()
    } else {
        let side = if skew.is_positive() { "behind" } else { "ahead of" };
        format!(
            "this machine's clock is {:#} {side} the store's: set it by NTP",
            skew.abs()
        )
    };
    Some(Explanation::of(Class::ClockSkewed, hint))
}

fn redirect(
    asked: &Asked<'_>,
    status: StatusCode,
    headers: &HeaderMap,
    document: &Document,
) -> Option<Explanation> {
    if !status.is_redirection() || status == StatusCode::NOT_MODIFIED {
        return None;
    }
    let location = text(headers, header::LOCATION.as_str()).and_then(|url| url.parse::<http::Uri>().ok());
    let host = location.as_ref().and_then(http::Uri::host).map(str::to_owned);
    let host = host.or_else(|| {
        document
            .endpoint
            .parse::<http::Uri>()
            .ok()?
            .host()
            .map(str::to_owned)
    });
    let to = host.map_or_else(String::new, |host| format!(" to {host}"));
    let cause = match (wrong_region(asked, headers, document), asked.region) {
        (Some(hint), _) => hint,
        (None, _) if !to.is_empty() => "if that is your store, set it as the endpoint".to_owned(),
        (None, Some(region)) => {
            format!("most often the region (now {region}) or the endpoint is wrong")
        }
        (None, None) => "most often the endpoint is wrong".to_owned(),
    };
    let hint = format!(
        "the store redirects{to}, which isn't followed, for credentials are for no other host: {cause}"
    );
    Some(Explanation::of(Class::InvalidConfig, hint))
}

fn region(asked: &Asked<'_>, headers: &HeaderMap, document: &Document) -> Option<Explanation> {
    let hint = wrong_region(asked, headers, document)?;
    Some(Explanation::of(Class::InvalidConfig, hint))
}

/// Answers to HEAD have no body, so that nothing more is said.
fn bare(asked: &Asked<'_>, status: StatusCode, document: &Document) -> Option<String> {
    let region = asked.region?;
    let is_bare = status == StatusCode::BAD_REQUEST && document.code.is_empty();
    is_bare.then(|| {
        format!(
            "a refusal without a reason: most often the region (now {region}), a session token or the encryption key is \
             wrong"
        )
    })
}

/// The bucket lies in another region, and the server says in which.
fn wrong_region(asked: &Asked<'_>, headers: &HeaderMap, document: &Document) -> Option<String> {
    let configured = asked.region?;
    let of_header = text(headers, "x-amz-bucket-region").unwrap_or_default();
    let is_name = |name: &&str| {
        let fits = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'-' | b'_' | b'.');
        !name.is_empty() && name.len() <= 64 && name.bytes().all(fits)
    };
    let region = [of_header, &document.region].into_iter().find(is_name)?;
    (region != configured)
        .then(|| format!("the bucket lies in region {region}, and {configured} is configured: set `region`"))
}

fn checksums(asked: &Asked<'_>, status: StatusCode, document: &Document) -> Option<String> {
    let says_so = || {
        let words = format!("{} {}", document.code, document.message).to_ascii_lowercase();
        ["checksum", "sha256", "header", "digest"]
            .iter()
            .any(|word| words.contains(word))
    };
    let may_be = match status.as_u16() {
        // A header that a proxy drops makes the signature wrong.
        403 => document.code == "SignatureDoesNotMatch",
        400 | 422 => {
            let code = document.code.as_str();
            says_so()
                || matches!(
                    code,
                    "" | "InvalidRequest" | "InvalidArgument" | "MalformedXML" | "BadRequest"
                )
        }
        411 | 415 | 501 => true,
        _ => false,
    };
    (asked.has_checksum && may_be).then(|| {
        "if this store doesn't know checksums of SHA-256, set `requestChecksumCalculation` to `when_required`: content is \
         sent with its MD5 then"
            .to_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ASKED: Asked<'_> = Asked {
        region: Some("us-east-1"),
        has_checksum: false,
        now: Timestamp::UNIX_EPOCH,
    };

    fn headers(fields: &[(&'static str, &'static str)]) -> HeaderMap {
        let fields = fields.iter().map(|(name, value)| {
            (
                http::HeaderName::from_static(name),
                http::HeaderValue::from_static(value),
            )
        });
        fields.collect()
    }

    fn document(code: &str, message: &str) -> Document {
        Document {
            code: code.to_owned(),
            message: message.to_owned(),
            ..Document::default()
        }
    }

    fn find(
        asked: &Asked<'_>,
        status: u16,
        fields: &[(&'static str, &'static str)],
        document: &Document,
    ) -> Explanation {
        Explanation::find(
            asked,
            StatusCode::from_u16(status).unwrap(),
            &headers(fields),
            document,
        )
    }

    #[test]
    fn the_region_is_named() {
        let elsewhere = [("x-amz-bucket-region", "eu-west-1")];
        let in_body = Document {
            region: "eu-west-1".to_owned(),
            ..document("AuthorizationHeaderMalformed", "the region 'us-east-1' is wrong")
        };
        for (status, fields, document) in [
            (400, &elsewhere[..], &Document::default()),
            (301, &elsewhere, &Document::default()),
            (400, &[], &in_body),
        ] {
            let found = find(&ASKED, status, fields, document);
            assert_eq!(found.class, Some(Class::InvalidConfig));
            assert!(found.hint.contains("eu-west-1, and us-east-1"), "{}", found.hint);
        }
        let bare = find(&ASKED, 400, &[], &Document::default());
        assert!(
            bare.class.is_none() && bare.hint.contains("region (now us-east-1)"),
            "{bare:?}"
        );
        let here = find(
            &ASKED,
            403,
            &[("x-amz-bucket-region", "us-east-1")],
            &document("AccessDenied", ""),
        );
        assert_eq!(here, Explanation::default());
        let hostile = find(
            &ASKED,
            403,
            &[("x-amz-bucket-region", "a b; rm")],
            &document("AccessDenied", ""),
        );
        assert_eq!(hostile, Explanation::default());
    }

    #[test]
    fn redirects_name_the_host_only() {
        let location = [(
            "location",
            "https://user:word@other.example:8443/b?X-Amz-Signature=1",
        )];
        let found = find(&ASKED, 307, &location, &Document::default());
        assert_eq!(found.class, Some(Class::InvalidConfig));
        assert!(
            found.hint.contains("redirects to other.example,"),
            "{}",
            found.hint
        );
        assert!(
            !found.hint.contains("word") && !found.hint.contains("Signature"),
            "{}",
            found.hint
        );
        let bare = find(&ASKED, 301, &[], &Document::default());
        assert!(bare.hint.contains("region (now us-east-1)"), "{}", bare.hint);
        assert_eq!(
            find(&ASKED, 304, &location, &Document::default()),
            Explanation::default()
        );
    }

    #[test]
    fn the_clock_is_measured() {
        let at = |date| [("date", date)];
        let (late, early) = ("Thu, 01 Jan 1970 02:03:00 GMT", "Wed, 31 Dec 1969 23:50:00 GMT");
        let skewed = document("RequestTimeTooSkewed", "The difference is too large.");
        for (status, fields, document, expected) in [
            (403, &at(late)[..], &skewed, "is 2h 3m behind the store's"),
            (403, &at(early), &skewed, "is 10m ahead of the store's"),
            (403, &[], &skewed, "differ too much"),
            (403, &at(late), &Document::default(), "is 2h 3m behind"),
            (
                403,
                &at(late),
                &document("AuthenticationFailed", ""),
                "is 2h 3m behind",
            ),
            (400, &at(early), &document("invalid_grant", ""), "is 10m ahead"),
        ] {
            let found = find(&ASKED, status, fields, document);
            assert_eq!(found.class, Some(Class::ClockSkewed), "{document:?}");
            assert!(found.hint.contains(expected), "{}", found.hint);
        }
        let close = at("Thu, 01 Jan 1970 00:04:00 GMT");
        for (status, fields, document) in [
            (403, &close[..], Document::default()),
            (403, &at(late), document("AccessDenied", "")),
            (404, &at(late), Document::default()),
        ] {
            assert_eq!(
                find(&ASKED, status, fields, &document).class,
                None,
                "{document:?}"
            );
        }
    }

    #[test]
    fn checksums_name_their_setting() {
        let asked = Asked {
            has_checksum: true,
            ..ASKED
        };
        for (status, code, message, expected) in [
            (
                501,
                "NotImplemented",
                "A header you provided implies functionality",
                true,
            ),
            (
                400,
                "InvalidArgument",
                "unsupported header x-amz-checksum-sha256",
                true,
            ),
            (
                400,
                "MalformedXML",
                "The XML you provided was not well-formed",
                true,
            ),
            (
                400,
                "InvalidDigest",
                "The digest you specified is not valid",
                true,
            ),
            (403, "SignatureDoesNotMatch", "check your key", true),
            (403, "AccessDenied", "", false),
            (404, "NoSuchBucket", "", false),
            (400, "EntityTooLarge", "Your proposed upload exceeds", false),
            (503, "", "", false),
        ] {
            let found = find(&asked, status, &[], &document(code, message));
            let is_named = found.hint.contains("requestChecksumCalculation");
            assert_eq!((is_named, found.class), (expected, None), "{code}");
            let without = find(&ASKED, status, &[], &document(code, message));
            assert!(!without.hint.contains("requestChecksumCalculation"), "{code}");
        }
    }
}
