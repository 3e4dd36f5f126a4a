//! Decodes a document by the fields of its kind, as Go's JSON decodes into a type and writes the type again: unknown
//! fields are dropped with a warning, wrong types refused, and a field that is not there has its zero value.

use serde_json::{Map, Value};

use crate::discovery::{TOKEN_FORM, Token};
use crate::duration::Duration;
use crate::quantity;
use crate::report::Report;
use crate::wording::{either, nearest};
use crate::yaml::{Content, Node};

/// What a field holds.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Text,
    /// One of these words, or empty text, which stands for the component's default.
    OneOf(&'static [&'static str]),
    Bool,
    /// A whole number of a range.
    Int(i64, i64),
    /// A number of 64 bits.
    Float,
    /// A number of 32 bits, which keeps no more digits than these need.
    Single,
    /// A duration in Go's form.
    Duration,
    /// A duration in Go's form, or nanoseconds.
    Nanoseconds,
    /// An amount (`64Ki`), as text or as a number.
    Quantity,
    /// A bootstrap token; one that is not given is to be made.
    Token,
    /// Anything, as it is.
    Any,
    List(&'static Kind),
    Map(&'static Kind),
    Object(&'static [Field]),
}

/// When a field is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Written {
    /// Always, with its zero value if need be.
    Always,
    /// Unless it is empty, zero or false (`omitempty`). Objects and durations are never empty.
    Nonzero,
    /// If it is given (a pointer with `omitempty`).
    Given,
    /// Always, `null` if it is not given (a pointer).
    Nullable,
}

/// A field of a kind.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) written: Written,
    /// The first minor version of Kubernetes that knows it, or 0.
    pub(crate) since: u32,
}

impl Field {
    const fn new(name: &'static str, kind: Kind, written: Written) -> Self {
        Self {
            name,
            kind,
            written,
            since: 0,
        }
    }

    /// A field that is always written.
    pub(crate) const fn always(name: &'static str, kind: Kind) -> Self {
        Self::new(name, kind, Written::Always)
    }

    /// A field that is written unless it is empty.
    pub(crate) const fn nonzero(name: &'static str, kind: Kind) -> Self {
        Self::new(name, kind, Written::Nonzero)
    }

    /// A field that is written if it is given.
    pub(crate) const fn given(name: &'static str, kind: Kind) -> Self {
        Self::new(name, kind, Written::Given)
    }

    /// A field that is `null` if it is not given.
    pub(crate) const fn nullable(name: &'static str, kind: Kind) -> Self {
        Self::new(name, kind, Written::Nullable)
    }

    /// The field, known since a minor version.
    pub(crate) const fn since(self, since: u32) -> Self {
        Self { since, ..self }
    }
}

/// Which values are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rules {
    /// Those that Go's type cannot hold. kubeadm knows no more of the configurations of the kubelet and of kube-proxy (`Validate` of
    /// `cmd/kubeadm/app/componentconfigs/configset.go`).
    Types,
    /// Those too for which the component would end.
    Components,
}

/// The object of a document's root. `apiVersion` and `kind` are not among its fields.
pub(crate) fn decode(
    fields: &'static [Field],
    root: Option<&Node>,
    minor: u32,
    rules: Rules,
    report: &mut Report,
) -> Map<String, Value> {
    let mut decoder = Decoder {
        minor,
        rules,
        report,
    };
    decoder.object(fields, root, "")
}

struct Decoder<'a> {
    minor: u32,
    rules: Rules,
    report: &'a mut Report,
}

impl Decoder<'_> {
    fn object(
        &mut self,
        fields: &'static [Field],
        node: Option<&Node>,
        path: &str,
    ) -> Map<String, Value> {
        let known: Vec<&Field> = fields
            .iter()
            .filter(|field| field.since <= self.minor)
            .collect();
        if let Some(node) = node {
            self.check_names(&known, node, path);
        }
        let mut out = Map::new();
        for field in known {
            let node = node.and_then(|node| node.get(field.name));
            if let Some(value) = self.field(field, node, path) {
                out.insert(field.name.to_owned(), value);
            }
        }
        out
    }

    fn check_names(&mut self, known: &[&Field], node: &Node, path: &str) {
        let Content::Map(entries) = &node.content else {
            return;
        };
        for (name, value) in entries {
            let field = join(path, name);
            let root = path.is_empty() && matches!(name.as_str(), "apiVersion" | "kind");
            if !root && !known.iter().any(|known| known.name == name) {
                self.report
                    .warn_at(&field, value.at, "unknown field: it is ignored");
            }
        }
    }

    /// The value that is written for a field, if one is.
    fn field(&mut self, field: &Field, node: Option<&Node>, path: &str) -> Option<Value> {
        let path = join(path, field.name);
        let given = node.filter(|node| node.content != Content::Null);
        let value = match given {
            Some(node) => Some(self.value(&field.kind, node, &path)),
            // Go's type of a duration reads null as empty text, unless a pointer stands for nothing.
            None if matches!((field.kind, node), (Kind::Duration, Some(_)))
                && matches!(field.written, Written::Always | Written::Nonzero) =>
            {
                node.map(|node| self.value(&field.kind, node, &path))
            }
            None if matches!(field.written, Written::Given | Written::Nullable) => None,
            None => Some(self.zero(&field.kind, &path)),
        };
        match field.written {
            Written::Always | Written::Given => value,
            Written::Nullable => Some(value.unwrap_or(Value::Null)),
            Written::Nonzero => value.filter(|value| !is_empty(&field.kind, value)),
        }
    }

    fn zero(&mut self, kind: &Kind, path: &str) -> Value {
        match kind {
            Kind::Text | Kind::OneOf(_) | Kind::Token => "".into(),
            Kind::Bool => false.into(),
            Kind::Int(..) | Kind::Float | Kind::Single | Kind::Nanoseconds => 0.into(),
            Kind::Duration => "0s".into(),
            Kind::Quantity => "0".into(),
            Kind::Any | Kind::List(_) | Kind::Map(_) => Value::Null,
            Kind::Object(fields) => self.object(fields, None, path).into(),
        }
    }

    fn value(&mut self, kind: &Kind, node: &Node, path: &str) -> Value {
        self.report.place(path, node.at);
        match (kind, &node.content) {
            (Kind::Object(fields), Content::Map(_)) => self.object(fields, Some(node), path).into(),
            (Kind::List(kind), Content::List(items)) => {
                let item = |(number, item): (usize, &Node)| {
                    self.item(kind, item, &join(path, &number.to_string()))
                };
                items.iter().enumerate().map(item).collect()
            }
            (Kind::Map(kind), Content::Map(entries)) => {
                let entry = |(name, item): &(String, Node)| {
                    (name.clone(), self.item(kind, item, &join(path, name)))
                };
                Value::Object(entries.iter().map(entry).collect())
            }
            (Kind::Any, content) => content.value(),
            (kind, content) => scalar(&self.of_rules(kind), content).unwrap_or_else(|message| {
                self.report.refuse_at(path, node.at, message);
                self.zero(kind, path)
            }),
        }
    }

    /// What a field may hold by the rules that count.
    fn of_rules(&self, kind: &Kind) -> Kind {
        const LEAST: i64 = i32::MIN as i64;
        const MOST: i64 = i32::MAX as i64;
        match *kind {
            kind if self.rules == Rules::Components => kind,
            Kind::OneOf(_) => Kind::Text,
            // Go's type of all ranges that fit into it.
            Kind::Int(least, most) if least >= LEAST && most <= MOST => Kind::Int(LEAST, MOST),
            kind => kind,
        }
    }

    /// An item of a list or mapping, which has its zero value if it is null.
    fn item(&mut self, kind: &Kind, node: &Node, path: &str) -> Value {
        match node.content {
            Content::Null => self.zero(kind, path),
            _ => self.value(kind, node, path),
        }
    }
}

fn join(path: &str, name: &str) -> String {
    if path.is_empty() {
        name.to_owned()
    } else {
        format!("{path}.{name}")
    }
}

fn is_empty(kind: &Kind, value: &Value) -> bool {
    match value {
        _ if matches!(kind, Kind::Object(_) | Kind::Duration | Kind::Nanoseconds) => false,
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(true) => false,
    }
}

fn scalar(kind: &Kind, content: &Content) -> Result<Value, String> {
    match (kind, content) {
        (Kind::Text, Content::Text(text)) => Ok(text.as_str().into()),
        (Kind::OneOf(words), Content::Text(text)) => one_of(words, text),
        (Kind::Bool, Content::Bool(bool)) => Ok((*bool).into()),
        (Kind::Int(least, most), content) => int(*least, *most, content),
        (Kind::Float, Content::Float(_)) => {
            int(i64::MIN, i64::MAX, content).or(Ok(content.value()))
        }
        (Kind::Float, Content::Int(_)) => Ok(content.value()),
        (Kind::Single, Content::Float(float)) => single(&float.to_string()),
        (Kind::Single, Content::Int(int)) => single(&int.to_string()),
        (Kind::Duration | Kind::Nanoseconds, Content::Text(text)) => duration(text),
        (Kind::Nanoseconds, Content::Int(_) | Content::Float(_)) => {
            int(i64::MIN, i64::MAX, content)
        }
        (Kind::Quantity, Content::Text(text)) => amount(kind, text, content),
        (Kind::Quantity, Content::Int(int)) => amount(kind, &int.to_string(), content),
        (Kind::Quantity, Content::Float(float)) => amount(kind, &float.to_string(), content),
        (Kind::Token, Content::Text(text)) if Token::parse(text).is_some() => {
            Ok(text.as_str().into())
        }
        (Kind::Token, Content::Text(_)) => Err(TOKEN_FORM.to_owned()),
        (kind, content) => Err(wrong_type(kind, content)),
    }
}

fn one_of(words: &[&str], text: &str) -> Result<Value, String> {
    if text.is_empty() || words.contains(&text) {
        return Ok(text.into());
    }
    let meant = nearest(text, words.iter().copied());
    let meant = meant.map_or(String::new(), |word| format!("; did you mean {word:?}?"));
    Err(format!(
        "{text:?} is not known; expected {}{meant}",
        either(words)
    ))
}

fn duration(text: &str) -> Result<Value, String> {
    let duration = Duration::parse(text).map(|duration| Value::from(duration.to_string()));
    duration.ok_or_else(|| format!("{text:?} is not a duration; expected one like 1h30m"))
}

fn int(least: i64, most: i64, content: &Content) -> Result<Value, String> {
    let int = match content {
        Content::Int(int) => i64::try_from(*int).ok(),
        #[allow(
            clippy::cast_possible_truncation,
            reason = "a whole number within the range of i64"
        )]
        Content::Float(float) if float.fract() == 0.0 && float.abs() < 9e18 => Some(*float as i64),
        _ => return Err(wrong_type(&Kind::Int(least, most), content)),
    };
    match int.filter(|int| (least..=most).contains(int)) {
        Some(int) => Ok(int.into()),
        None => Err(format!("expected a whole number from {least} to {most}")),
    }
}

/// A number with the digits that 32 bits need, as Go writes it.
fn single(text: &str) -> Result<Value, String> {
    let number: Option<f32> = text.parse().ok();
    let Some(number) = number.filter(|number| number.is_finite()) else {
        return Err("expected a number of at most 3.4e38".to_owned());
    };
    let text = number.to_string();
    let whole = text.parse::<i64>().map(Value::from).ok();
    let large = || text.parse::<u64>().map(Value::from).ok();
    let other = || text.parse::<f64>().map(Value::from).ok();
    let value = whole.or_else(large).or_else(other);
    value.ok_or_else(|| "expected a number".to_owned())
}

/// An amount in the form in which Kubernetes writes it: a number with an SI or a binary suffix, or an exponent.
fn amount(kind: &Kind, text: &str, content: &Content) -> Result<Value, String> {
    let amount = quantity::canonical(text).map(Value::from);
    amount.ok_or_else(|| wrong_type(kind, content))
}

fn wrong_type(kind: &Kind, content: &Content) -> String {
    let expected = match kind {
        Kind::Text | Kind::OneOf(_) => "text",
        Kind::Bool => "true or false",
        Kind::Int(..) => "a whole number",
        Kind::Float | Kind::Single => "a number",
        Kind::Duration | Kind::Nanoseconds => "a duration like 1h30m",
        Kind::Quantity => "an amount like 64Ki",
        Kind::Token => "a bootstrap token",
        Kind::Any => "a value",
        Kind::List(_) => "a list",
        Kind::Map(_) | Kind::Object(_) => "a mapping",
    };
    let found = match content {
        Content::Null => "nothing",
        Content::Bool(_) => "a truth value",
        Content::Int(_) | Content::Float(_) => "a number",
        Content::Text(_) => "text",
        Content::List(_) => "a list",
        Content::Map(_) => "a mapping",
    };
    let quotes = matches!(
        (kind, content),
        (
            Kind::Text,
            Content::Bool(_) | Content::Int(_) | Content::Float(_)
        )
    );
    let quotes = if quotes { " (write it in quotes)" } else { "" };
    format!("expected {expected}, found {found}{quotes}")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::yaml;

    static INNER: &[Field] = &[
        Field::nonzero("x", Kind::Text),
        Field::always("wait", Kind::Duration),
    ];
    static FIELDS: &[Field] = &[
        Field::always("name", Kind::Text),
        Field::nonzero("size", Kind::Int(0, 9)),
        Field::given("flag", Kind::Bool),
        Field::nullable("bit", Kind::Int(0, 31)),
        Field::nonzero("inner", Kind::Object(INNER)),
        Field::nonzero("words", Kind::List(&Kind::Text)),
        Field::nonzero("new", Kind::Text).since(35),
        Field::nonzero("mode", Kind::OneOf(&["a", "b"])),
        Field::nonzero("count", Kind::Int(0, u32::MAX as i64)),
    ];

    fn read(text: &str) -> (Value, Report) {
        read_by(Rules::Components, text)
    }

    fn read_by(rules: Rules, text: &str) -> (Value, Report) {
        let mut report = Report::default();
        let node = yaml::document(text, 0, &mut report);
        let value = decode(FIELDS, node.as_ref(), 34, rules, &mut report);
        (value.into(), report)
    }

    #[test]
    fn ranges_and_words_are_the_components_and_types_are_kubeadms() {
        let (value, report) = read_by(Rules::Types, "{size: -10, bit: 99, mode: other}");
        assert_eq!(report.mistakes, []);
        let found = (&value["size"], &value["bit"], &value["mode"]);
        assert_eq!(found, (&json!(-10), &json!(99), &json!("other")));
        for rules in [Rules::Types, Rules::Components] {
            let text = "{size: 2147483648, bit: x, mode: 3, count: 4294967296}";
            let (_, report) = read_by(rules, text);
            let fields = report.mistakes.iter().map(|one| one.field.as_str());
            assert!(fields.eq(["size", "bit", "mode", "count"]), "{report:?}");
        }
        let (value, report) = read_by(Rules::Types, "count: 4294967295");
        assert_eq!(
            (&value["count"], report.mistakes.len()),
            (&json!(4_294_967_295_u32), 0)
        );
        let (_, report) = read("{mode: other}");
        assert_eq!(report.mistakes.len(), 1);
    }

    #[test]
    fn numbers_keep_the_digits_of_their_type() {
        for (text, expected) in [
            ("2147483647", json!(2_147_483_600)),
            ("0.123456789", json!(0.123_456_79)),
            ("5.5", json!(5.5)),
            ("-100.0", json!(-100)),
        ] {
            assert_eq!(single(text), Ok(expected), "{text}");
        }
        assert!(single("1e39").is_err());
        for (number, expected) in [(10.5, "10500m"), (1000.0, "1k")] {
            let amount = scalar(&Kind::Quantity, &Content::Float(number));
            assert_eq!(amount, Ok(expected.into()));
        }
    }

    #[test]
    fn what_is_not_given_has_its_zero_value() {
        let expected = json!({"name": "", "bit": null, "inner": {"wait": "0s"}});
        assert_eq!(read("{}").0, expected);
        let (value, report) =
            read("{name: a, size: 3, flag: false, words: [b, null], inner: {wait: 90s}}");
        let inner = json!({"wait": "1m30s"});
        let expected = json!({"name": "a", "size": 3, "flag": false, "bit": null, "inner": inner, "words": ["b", ""]});
        assert_eq!(value, expected);
        assert!(report.mistakes.is_empty() && report.warnings.is_empty());
    }

    #[test]
    fn unknown_fields_are_dropped_and_wrong_types_refused() {
        let (value, report) =
            read("other: 1\nnew: x\nname: 3\nsize: 10\ninner: {wait: soon}\nwords: a\n");
        assert!(value.get("other").is_none() && value.get("new").is_none());
        assert_eq!(report.warnings.len(), 2);
        let shown: Vec<String> = report.mistakes.iter().map(ToString::to_string).collect();
        assert_eq!(
            shown,
            [
                "name: expected text, found a number (write it in quotes) (line 3, column 7)",
                "size: expected a whole number from 0 to 9 (line 4, column 7)",
                "inner.wait: \"soon\" is not a duration; expected one like 1h30m (line 5, column 15)",
                "words: expected a list, found text (line 6, column 8)",
            ]
        );
    }
}
