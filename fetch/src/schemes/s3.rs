//! `s3://` and `arn:` addresses.

use crate::partition::{PARTITIONS, Partition};
use crate::percent;
use crate::s3::{Object, Place, is_name};

/// Reads `s3://BUCKET/KEY` or `arn:PARTITION:s3:::BUCKET/KEY` or
/// `arn:PARTITION:s3:REGION:ACCOUNT:accesspoint/NAME/object/KEY`, each with `?versionId=` if one is meant.
pub(super) fn parse(text: &str) -> Result<Object, String> {
    let text = text.split_once('#').map_or(text, |(text, _)| text);
    let (address, query) = text.split_once('?').unwrap_or((text, ""));
    let version = query
        .split('&')
        .find_map(|pair| pair.strip_prefix("versionId="))
        .map(percent::decode);
    let (place, key) = match address.split_once("://") {
        Some((_, rest)) => {
            let (bucket, key) = rest.split_once('/').unwrap_or((rest, ""));
            (Place::Bucket(bucket.to_owned(), None), percent::decode(key))
        }
        None => of_arn(address)?,
    };
    let bad_bucket = match &place {
        Place::Bucket(name, _) => !is_name(name),
        Place::Point(name, account, region) => {
            ![name, account, region].into_iter().all(|s| is_name(s))
        }
    };
    if bad_bucket || key.is_empty() {
        return Err("expected s3://BUCKET/KEY or the ARN of an S3 object".to_owned());
    }
    Ok(Object::new(address.to_owned(), place, key, version))
}

fn of_arn(text: &str) -> Result<(Place, String), String> {
    let wrong = || "expected the ARN of an S3 object".to_owned();
    let parts: Vec<&str> = text.splitn(6, ':').collect();
    let [_, partition, "s3", region, account, resource] = parts[..] else {
        return Err(wrong());
    };
    if let Some(point) = resource.strip_prefix("accesspoint/") {
        let (name, key) = point.split_once("/object/").ok_or_else(wrong)?;
        let point = Place::Point(name.to_owned(), account.to_owned(), region.to_owned());
        return Ok((point, key.to_owned()));
    }
    let Some(partition) = Partition::named(partition) else {
        let known = PARTITIONS.map(|known| known.name).join(", ");
        return Err(format!(
            "unknown AWS partition {partition:?}; expected one of {known}"
        ));
    };
    let (bucket, key) = resource.split_once('/').ok_or_else(wrong)?;
    let place = Place::Bucket(bucket.to_owned(), Some(partition.region));
    Ok((place, key.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Client, Options};
    use crate::identity::Endpoints;

    #[test]
    fn addresses_lead_to_the_region_s_own_service() {
        let client = Client::new(&Options {
            ca_bundle: Some(Vec::new()),
            ..Options::default()
        })
        .unwrap();
        for (text, region, address) in [
            (
                "s3://b/a%20b/c",
                "eu-west-1",
                "https://b.s3.dualstack.eu-west-1.amazonaws.com/a%20b/c",
            ),
            (
                "s3://b.c/k?versionId=7",
                "us-east-1",
                "https://s3.dualstack.us-east-1.amazonaws.com/b.c/k",
            ),
            (
                "arn:aws:s3:::b/a/b",
                "us-east-1",
                "https://b.s3.dualstack.us-east-1.amazonaws.com/a/b",
            ),
            (
                "s3://b/a/%2e%2E/./k",
                "us-east-1",
                "https://b.s3.dualstack.us-east-1.amazonaws.com/a/.././k",
            ),
            (
                "arn:aws-cn:s3:::b/k",
                "cn-north-1",
                "https://b.s3.dualstack.cn-north-1.amazonaws.com.cn/k",
            ),
            (
                "arn:aws-us-gov:s3:::b/k",
                "us-gov-east-1",
                "https://b.s3.dualstack.us-gov-east-1.amazonaws.com/k",
            ),
            (
                "arn:aws-iso-b:s3:::b/k",
                "us-isob-east-1",
                "https://b.s3.us-isob-east-1.sc2s.sgov.gov/k",
            ),
            (
                "arn:aws:s3:us-west-2:123456789012:accesspoint/p/object/a/b",
                "us-west-2",
                "https://p-123456789012.s3-accesspoint.dualstack.us-west-2.amazonaws.com/a/b",
            ),
        ] {
            let object = parse(text).unwrap();
            assert_eq!(object.address(&client, region), address, "{text}");
        }
        let object = parse("s3://b/k?x=1&versionId=a%2Bb").unwrap();
        assert_eq!(object.version.as_deref(), Some("a+b"));
        assert_eq!(Endpoints::default().s3, None);
    }

    #[test]
    fn what_names_no_object_is_refused() {
        for text in [
            "s3://b",
            "s3://b/",
            "s3:///k",
            "s3://b@x/k",
            "arn:aws:s3:::b",
            "arn:aws:ec2:::b/k",
            "arn:mars:s3:::b/k",
            "arn:aws:s3:r:1:accesspoint/p",
            "arn:aws:s3",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
