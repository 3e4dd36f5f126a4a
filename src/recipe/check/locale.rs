//! `[locale]`: the language of the system's programs, the locales that the image has, and the time zone.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Check;
use super::made::Made;
use super::names::Rule;
use crate::recipe::mistakes::Mistake;

/// What locale.conf(5) is.
const LOCALE: &str = "/etc/locale.conf";
/// What localtime(5) is.
const LOCALTIME: &str = "/etc/localtime";
/// Folder of the time zones.
pub(crate) const ZONES: &str = "/usr/share/zoneinfo";
/// Locales that every image has.
const ALWAYS: [&str; 3] = ["C.UTF-8", "C", "POSIX"];

/// The language of the system's programs, the locales that the image has, and the time zone.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub(super) struct RawLocale {
    /// The default locale of services and logins (LANG), one of `generate` or C.UTF-8.
    pub lang: Option<String>,
    /// Locales that the build makes beside C.UTF-8, from the package `locales`, which does not come into the image.
    pub generate: Vec<String>,
    /// The time zone, as Europe/Berlin. Default: the package tzdata's, Etc/UTC.
    pub timezone: Option<String>,
}

/// The locales to make, and the time zone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Locale {
    /// Locales that the build makes, as `de_DE.UTF-8`.
    pub generate: Vec<String>,
    /// The time zone, if it is not the package's.
    pub timezone: Option<String>,
}

pub(super) fn check(check: &mut Check<'_>, raw: RawLocale) -> (Locale, Vec<Made>) {
    let RawLocale {
        lang,
        generate,
        timezone,
    } = raw;
    check.list("locale.generate", Rule::Locale);
    check.text("locale.lang", Rule::Locale);
    check.text("locale.timezone", Rule::Zone);
    let mut made = Vec::new();
    if let Some(lang) = &lang {
        let place = check.place("locale.lang");
        let known = || {
            ALWAYS
                .into_iter()
                .chain(generate.iter().map(String::as_str))
        };
        if !known().any(|one| one == lang) {
            let mistake = Mistake::at(
                &place,
                format!("the image would have no locale `{lang}`"),
                "expected C.UTF-8, or one of `generate` in [locale]",
            );
            let mistake = mistake.nearest(lang, known());
            check.add(mistake.or_help(format!("generate = [{lang:?}] makes it")));
        }
        let text = format!("LANG={lang}\n");
        made.push(Made::text(check, LOCALE, "`locale.lang`", &place, &text));
    }
    if let Some(zone) = &timezone {
        let place = check.place("locale.timezone");
        let target = format!("{ZONES}/{zone}");
        let word = "`locale.timezone`";
        made.push(Made::link(check, LOCALTIME, word, &place, &target));
    }
    (Locale { generate, timezone }, made)
}
