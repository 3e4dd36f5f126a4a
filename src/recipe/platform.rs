//! Platforms as recipes name them: the rows of the table in the crate `platform` that have a name for recipes.

use std::borrow::Cow;
use std::fmt;
use std::sync::LazyLock;

use image::platform::PlatformId;
use platform::provider::Provider;
use platform::providers::TABLE;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A machine that an image can boot on: its drivers, and where it keeps a node's config.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Platform {
    provider: &'static Provider,
    name: &'static str,
}

/// The names of all platforms, for the message about an invalid one.
static NAMES: LazyLock<Vec<&'static str>> =
    LazyLock::new(|| Platform::all().map(|platform| platform.name).collect());

impl Platform {
    /// All platforms, in the table's order.
    pub fn all() -> impl Iterator<Item = Self> {
        TABLE.iter().filter_map(|provider| {
            let name = provider.recipe_name?;
            Some(Self { provider, name })
        })
    }

    /// The platform with this name in recipes.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::all().find(|platform| platform.name == name)
    }

    /// Its name in recipes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    /// Its row of the table.
    #[must_use]
    pub const fn provider(self) -> &'static Provider {
        self.provider
    }

    /// Its id in the manifest.
    #[must_use]
    pub const fn id(self) -> PlatformId {
        PlatformId::of(self.provider.id)
    }
}

impl fmt::Debug for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Platform({})", self.name)
    }
}

impl Serialize for Platform {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name)
    }
}

impl<'de> Deserialize<'de> for Platform {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = Cow::<str>::deserialize(deserializer)?;
        Self::named(&name).ok_or_else(|| D::Error::unknown_variant(&name, &NAMES))
    }
}

/// A constant with its description for each platform, the same as schemars generates for an enum.
impl JsonSchema for Platform {
    fn schema_name() -> Cow<'static, str> {
        "Platform".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let one = |platform: Self| {
            json_schema!({
                "type": "string",
                "const": platform.name,
                "description": platform.provider.summary,
            })
        };
        json_schema!({
            "description": "Machines that an image can boot on: their drivers, and where they keep a node's config.",
            "oneOf": Self::all().map(one).collect::<Vec<_>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for platform in Platform::all() {
            assert_eq!(Platform::named(platform.name()), Some(platform));
            assert_eq!(platform.id().as_str(), platform.provider().id);
            let json = serde_json::to_string(&platform).unwrap();
            assert_eq!(serde_json::from_str::<Platform>(&json).unwrap(), platform);
        }
        let gce = Platform::named("gce").unwrap();
        assert_eq!(gce.provider().id, "gcp");
        assert_eq!(Platform::named("file"), None);
    }
}
