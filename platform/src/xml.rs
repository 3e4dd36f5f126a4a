//! XML as far as vendors' small documents need it: the texts of elements, and escapes in both directions. Not a parser:
//! attributes whose value holds a `>` and CDATA are not understood.

/// The texts of the elements with this name, whatever its prefix, in the order of the document; without empty ones.
pub(crate) fn texts(xml: &str, name: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut rest = xml;
    while let Some((_, after)) = rest.split_once('<') {
        if let Some(comment) = after.strip_prefix("!--") {
            rest = comment.split_once("-->").map_or("", |(_, after)| after);
            continue;
        }
        let Some((tag, content)) = after.split_once('>') else {
            break;
        };
        rest = content;
        let own = tag.split(char::is_whitespace).next().unwrap_or_default();
        let text = content.split('<').next().unwrap_or_default().trim();
        let is_start = !tag.starts_with('/') && !tag.ends_with('/');
        let is_meant = is_start && own.rsplit(':').next() == Some(name);
        if is_meant && !text.is_empty() {
            out.push(unescaped(text));
        }
    }
    out
}

/// A text as it stands in an element or in quotes. Control characters, which XML 1.0 has no form for, become spaces.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

/// Decodes XML's five named entities and its character references.
pub(crate) fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('&') {
        out.push_str(before);
        let (name, next) = after.split_once(';').unwrap_or((after, ""));
        let number = |digits: &str, radix| {
            // `from_str_radix` alone takes a sign.
            digits.chars().all(|c| c.is_digit(radix)).then_some(())?;
            u32::from_str_radix(digits, radix)
                .ok()
                .and_then(char::from_u32)
        };
        let c = match name {
            "lt" => Some('<'),
            "gt" => Some('>'),
            "amp" => Some('&'),
            "quot" => Some('"'),
            "apos" => Some('\''),
            _ => match name.strip_prefix('#') {
                Some(digits) => match digits.strip_prefix(['x', 'X']) {
                    Some(digits) => number(digits, 16),
                    None => number(digits, 10),
                },
                None => None,
            },
        };
        match c {
            Some(c) => {
                out.push(c);
                rest = next;
            }
            None => {
                out.push('&');
                rest = after;
            }
        }
    }
    out.push_str(rest);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_by_the_name_of_their_element() {
        let xml = "<?xml version=\"1.0\"?><!-- <Id>no</Id> --><a:State x='1'>\n <Id> 1&amp;2 </Id><Id/>\
                   <Id></Id><IdList><b:Id y=\"2\">three</b:Id>no</IdList></a:State>";
        assert_eq!(texts(xml, "Id"), ["1&2", "three"]);
        assert!(texts(xml, "State").is_empty());
        for broken in ["", "<", "<Id", "<Id>", "<!-- <Id>x</Id>", "<Id/><é"] {
            assert!(texts(broken, "Id").is_empty(), "{broken}");
        }
    }

    #[test]
    fn what_is_escaped_is_read_again() {
        let text = "a <b> & \"c\" ü";
        assert_eq!(unescaped(&escaped(text)), text);
        assert_eq!(escaped("a\n\u{7}b"), "a  b");
        assert_eq!(unescaped("&#x41;&#66;&#+67;&#x+a;"), "AB&#+67;&#x+a;");
    }
}
