//! Recognises code that is compiled for tests only.

use proc_macro2::{TokenStream, TokenTree};
use syn::{Attribute, Item, Meta};

/// Whether an item is for tests only.
pub(crate) fn is_item(item: &Item) -> bool {
    any(attributes(item))
}

/// Whether one of these attributes restricts an item to tests.
pub(crate) fn any(attributes: &[Attribute]) -> bool {
    attributes.iter().any(is_test)
}

fn attributes(item: &Item) -> &[Attribute] {
    match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => &[],
    }
}

/// `#[test]`, `#[cfg(test)]`, and `#[cfg(all(test, …))]`. A condition that also holds outside of tests does not count.
fn is_test(attribute: &Attribute) -> bool {
    if attribute.path().is_ident("test") {
        return true;
    }
    let Meta::List(list) = &attribute.meta else {
        return false;
    };
    list.path.is_ident("cfg") && requires_test(list.tokens.clone())
}

fn requires_test(tokens: TokenStream) -> bool {
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let TokenTree::Ident(ident) = token else {
            continue;
        };
        if ident == "test" {
            return true;
        }
        if let Some(TokenTree::Group(group)) = tokens.peek() {
            if ident == "all" && requires_test(group.stream()) {
                return true;
            }
            tokens.next();
        }
    }
    false
}
