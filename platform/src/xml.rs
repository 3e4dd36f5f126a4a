//! The XML of vendors' small documents: the texts of elements, the attributes of elements, a document without some of its
//! elements, and escapes.

use std::collections::BTreeMap;
use std::ops::Range;

use quick_xml::Reader;
use quick_xml::errors::SyntaxError;
use quick_xml::escape::{resolve_predefined_entity, unescape};
use quick_xml::events::{BytesRef, BytesStart, Event};

/// Attributes by their names without prefixes.
pub(crate) type Attributes = BTreeMap<String, String>;

/// The texts of the elements with this name, whatever its prefix, in the order of their ends; without empty ones.
///
/// # Errors
/// If it is no whole document.
pub(crate) fn texts(xml: &str, name: &str) -> Result<Vec<String>, String> {
    let mut out = Vec::new();
    let mut open: Vec<(bool, String)> = Vec::new();
    walk(xml, |event, _| {
        let text = match event {
            Event::Start(start) => {
                open.push((start.local_name().as_ref() == name, String::new()));
                return Ok(());
            }
            Event::End(_) => {
                let ended = open.pop().filter(|(is_meant, _)| *is_meant);
                out.extend(ended.map(|(_, text)| text.trim().to_owned()));
                return Ok(());
            }
            Event::Text(text) => text.xml10_content().into_owned(),
            Event::CData(text) => text.xml10_content().into_owned(),
            Event::GeneralRef(reference) => resolved(reference)?,
            _ => return Ok(()),
        };
        if let Some((_, all)) = open.last_mut() {
            all.push_str(&text);
        }
        Ok(())
    })?;
    out.retain(|text| !text.is_empty());
    Ok(out)
}

/// The elements with this name, whatever its prefix: their attributes, and the bytes of the document that they are.
///
/// # Errors
/// If it is no whole document.
pub(crate) fn elements(xml: &str, name: &str) -> Result<Vec<(Attributes, Range<usize>)>, String> {
    let mut out = Vec::new();
    let mut open: Vec<Option<(Attributes, usize)>> = Vec::new();
    let meant = |start: &BytesStart<'_>, at: usize| {
        let is_meant = start.local_name().as_ref() == name;
        match is_meant {
            true => Ok::<_, String>(Some((attributes(start)?, at))),
            false => Ok(None),
        }
    };
    walk(xml, |event, range| {
        let ended = match event {
            Event::Start(start) => {
                open.push(meant(start, range.start)?);
                None
            }
            Event::Empty(start) => meant(start, range.start)?,
            Event::End(_) => open.pop().flatten(),
            _ => None,
        };
        out.extend(ended.map(|(attributes, from)| (attributes, from..range.end)));
        Ok(())
    })?;
    Ok(out)
}

/// Calls `each` with every event and its bytes.
fn walk(
    xml: &str,
    mut each: impl FnMut(&Event<'_>, Range<usize>) -> Result<(), String>,
) -> Result<(), String> {
    let mut reader = Reader::from_str(xml);
    let mut depth = 0_usize;
    loop {
        let from = position(&reader);
        let wrong = |what: String| format!("byte {from}: {what}");
        let event = reader.read_event().map_err(|why| wrong(why.to_string()))?;
        match &event {
            Event::Start(_) => depth += 1,
            // The reader has compared its name.
            Event::End(_) => depth -= 1,
            Event::Eof if depth == 0 => return Ok(()),
            Event::Eof => return Err(wrong(SyntaxError::UnclosedTag.to_string())),
            _ => {}
        }
        each(&event, from..position(&reader)).map_err(wrong)?;
    }
}

fn position(reader: &Reader<&[u8]>) -> usize {
    usize::try_from(reader.buffer_position()).unwrap_or(usize::MAX)
}

fn attributes(start: &BytesStart<'_>) -> Result<Attributes, String> {
    let read = start.attributes().map(|attribute| {
        let attribute = attribute.map_err(|why| why.to_string())?;
        // As it stands: line breaks of a config are not made spaces.
        let value = unescape(&attribute.value).map_err(|why| why.to_string())?;
        let name = attribute.key.local_name();
        Ok((name.as_ref().to_owned(), value.into_owned()))
    });
    read.collect()
}

fn resolved(reference: &BytesRef<'_>) -> Result<String, String> {
    if let Some(found) = reference
        .resolve_char_ref()
        .map_err(|why| why.to_string())?
    {
        return Ok(found.to_string());
    }
    let name = reference.xml10_content();
    let known = resolve_predefined_entity(&name).map(str::to_owned);
    known.ok_or_else(|| format!("&{name}; is not known"))
}

/// A text as it stands in an element or in quotes. Control characters, which XML 1.0 has no form for, become spaces.
pub(crate) fn escaped(text: &str) -> String {
    let plain: String = text
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    quick_xml::escape::escape(plain).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_found_by_the_name_of_their_element() {
        let xml = "<?xml version=\"1.0\"?><!-- <Id>no</Id> --><a:State x='1>2'>\n <Id> 1&amp;&#x32; </Id><Id/>\
                   <Id></Id><IdList><b:Id y=\"2\">three</b:Id>no</IdList><Id><![CDATA[<Id>&amp;]]></Id></a:State>";
        assert_eq!(texts(xml, "Id").unwrap(), ["1&2", "three", "<Id>&amp;"]);
        assert!(texts(xml, "State").unwrap().is_empty());
        assert!(texts("", "Id").unwrap().is_empty());
        for broken in [
            "<",
            "<Id",
            "<Id>",
            "<Id>x</Id",
            "<a><Id>x</Id>",
            "<!-- <Id>x</Id>",
            "<Id>x</Ib>",
            "<Id/><é",
            "<Id>&x;</Id>",
        ] {
            assert!(texts(broken, "Id").is_err(), "{broken}");
        }
    }

    #[test]
    fn elements_have_their_attributes_and_their_bytes() {
        let one = "<oe:P oe:key='a' v=\"x&#10;&gt;\n>\"><P key='b'/>text</oe:P>";
        let xml = format!("<E><!-- <P key='no'/> --><![CDATA[<P key='no'/>]]>{one} </E>");
        let found = elements(&xml, "P").unwrap();
        let of = |number: usize| {
            (
                found[number].0["key"].as_str(),
                &xml[found[number].1.clone()],
            )
        };
        assert_eq!(of(0), ("b", "<P key='b'/>"));
        assert_eq!(of(1), ("a", one));
        assert_eq!(found[1].0["v"], "x\n>\n>");
        assert_eq!(found.len(), 2);
        for broken in [
            "<P",
            "<P key='a'",
            "<P key='a' key='b'/>",
            "<P key=a/>",
            "<P key='&x;'/>",
        ] {
            assert!(elements(broken, "P").is_err(), "{broken}");
        }
    }

    #[test]
    fn what_is_escaped_is_read_again() {
        let text = "a <b> & \"c\" 'd' ü";
        let xml = format!("<a>{}</a>", escaped(text));
        assert_eq!(texts(&xml, "a").unwrap(), [text]);
        assert_eq!(escaped("a\n\u{7}b"), "a  b");
    }
}
