//! AWS partitions: separate clouds with their own regions and domains.
//!
//! From the endpoint data of AWS's SDKs (`partitions.json`). A partition whose S3 has no addresses of both versions of IP
//! has no `dual`.

/// A partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partition {
    /// Its name in ARNs.
    pub(crate) name: &'static str,
    /// What the names of its regions begin with.
    prefix: &'static str,
    /// The region that knows the location of its buckets.
    pub(crate) region: &'static str,
    /// The domain of its services.
    pub(crate) domain: &'static str,
    /// The label of S3's endpoints of both versions of IP, with its dot.
    pub(crate) dual: &'static str,
}

const fn row(
    name: &'static str,
    prefix: &'static str,
    region: &'static str,
    domain: &'static str,
    dual: &'static str,
) -> Partition {
    Partition {
        name,
        prefix,
        region,
        domain,
        dual,
    }
}

const DUAL: &str = ".dualstack";

/// All of them. The first is that of every region with no other prefix.
pub(crate) const PARTITIONS: [Partition; 8] = [
    row("aws", "", "us-east-1", "amazonaws.com", DUAL),
    row("aws-cn", "cn-", "cn-north-1", "amazonaws.com.cn", DUAL),
    row(
        "aws-us-gov",
        "us-gov-",
        "us-gov-west-1",
        "amazonaws.com",
        DUAL,
    ),
    row("aws-iso", "us-iso-", "us-iso-east-1", "c2s.ic.gov", ""),
    row(
        "aws-iso-b",
        "us-isob-",
        "us-isob-east-1",
        "sc2s.sgov.gov",
        "",
    ),
    row(
        "aws-iso-e",
        "eu-isoe-",
        "eu-isoe-west-1",
        "cloud.adc-e.uk",
        "",
    ),
    row(
        "aws-iso-f",
        "us-isof-",
        "us-isof-south-1",
        "csp.hci.ic.gov",
        "",
    ),
    row("aws-eusc", "eusc-", "eusc-de-east-1", "amazonaws.eu", ""),
];

impl Partition {
    /// The partition with this name in ARNs.
    pub(crate) fn named(name: &str) -> Option<Self> {
        PARTITIONS.into_iter().find(|one| one.name == name)
    }

    /// The partition that a region belongs to.
    pub(crate) fn of_region(region: &str) -> Self {
        let [usual, others @ ..] = PARTITIONS;
        let own = others
            .into_iter()
            .find(|one| region.starts_with(one.prefix));
        own.unwrap_or(usual)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_region_is_in_its_partition() {
        for partition in PARTITIONS {
            let found = Partition::of_region(partition.region);
            assert_eq!(found, partition);
            assert_eq!(Partition::named(partition.name), Some(partition));
        }
        assert_eq!(Partition::of_region("us-west-2").name, "aws");
        assert_eq!(Partition::of_region("us-isob-west-1").name, "aws-iso-b");
        assert_eq!(Partition::named("mars"), None);
    }
}
