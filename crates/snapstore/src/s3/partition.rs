//! AWS's partitions: clouds of their own, each with its domain.
//! <https://docs.aws.amazon.com/whitepapers/latest/aws-fault-isolation-boundaries/partitions.html>

use crate::{config::invalid, error::Result};

/// Beginnings of the names of regions, longest first where one begins another, and the domain of their services.
const PARTITIONS: &[(&str, &str)] = &[
    ("us-gov-", "amazonaws.com"),
    ("us-isob-", "sc2s.sgov.gov"),
    ("us-isof-", "csp.hci.ic.gov"),
    ("us-iso-", "c2s.ic.gov"),
    ("eu-isoe-", "cloud.adc-e.uk"),
    ("eusc-", "amazonaws.eu"),
    ("cn-", "amazonaws.com.cn"),
    ("us-", "amazonaws.com"),
    ("eu-", "amazonaws.com"),
    ("ap-", "amazonaws.com"),
    ("sa-", "amazonaws.com"),
    ("ca-", "amazonaws.com"),
    ("me-", "amazonaws.com"),
    ("af-", "amazonaws.com"),
    ("il-", "amazonaws.com"),
    ("mx-", "amazonaws.com"),
];

/// The domain of the region's services, if it is a region of AWS that is known here.
pub(super) fn domain(region: &str) -> Option<&'static str> {
    let mut parts = region.split('-');
    let is_word = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_lowercase());
    let number = parts.next_back()?;
    let is_region = number.parse::<u8>().is_ok() && parts.clone().count() >= 2 && parts.all(is_word);
    let (prefix, domain) = PARTITIONS.iter().find(|(prefix, _)| region.starts_with(prefix))?;
    // A partition that isn't known yet has a name like `us-isox-west-1`.
    let is_new = region
        .split('-')
        .nth(1)
        .is_some_and(|part| part.starts_with("iso"))
        && !prefix.contains("-iso");
    (is_region && !is_new).then_some(*domain)
}

/// Where S3 is asked in a region.
pub(super) fn endpoint(region: &str) -> Result<String> {
    let domain = domain(region).ok_or_else(|| {
        invalid(format!(
            "region {region:?} is none of AWS that is known here, so that the address of its S3 isn't known: set an endpoint"
        ))
    })?;
    Ok(format!("https://s3.{region}.{domain}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_partition_has_its_domain() {
        for (region, expected) in [
            ("us-east-1", Some("amazonaws.com")),
            ("ap-southeast-7", Some("amazonaws.com")),
            ("us-gov-west-1", Some("amazonaws.com")),
            ("cn-northwest-1", Some("amazonaws.com.cn")),
            ("eusc-de-east-1", Some("amazonaws.eu")),
            ("us-iso-east-1", Some("c2s.ic.gov")),
            ("us-isob-east-1", Some("sc2s.sgov.gov")),
            ("us-isof-south-1", Some("csp.hci.ic.gov")),
            ("eu-isoe-west-1", Some("cloud.adc-e.uk")),
            ("us-isox-west-1", None),
            ("xy-central-1", None),
            ("US-Standard", None),
            ("garage", None),
            ("auto", None),
            ("us-east", None),
            ("us-1", None),
            ("us-east-1.evil", None),
            ("us-ea/st-1", None),
            ("", None),
        ] {
            assert_eq!(domain(region), expected, "{region:?}");
            let said = endpoint(region).map_err(|e| e.to_string());
            match expected {
                Some(domain) => assert_eq!(said, Ok(format!("https://s3.{region}.{domain}"))),
                None => assert!(said.unwrap_err().contains("set an endpoint"), "{region:?}"),
            }
        }
    }
}
