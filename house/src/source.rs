//! One target's modules: their files, what each defines, and every path that their code names. Tests are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Meta, UseTree};

/// A path that code names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Its segments, `crate` and `super` included.
    pub segments: Vec<String>,
    /// Where, from 1.
    pub line: usize,
}

/// A module, in its own file or within another's.
#[derive(Clone, Debug, Default)]
pub struct Module {
    /// Its name in its parent; empty for a root.
    pub name: String,
    /// Number of its parent.
    pub parent: Option<usize>,
    /// Number of its file.
    pub file: usize,
    /// Child modules by name.
    pub children: BTreeMap<String, usize>,
    /// Names of the items that it defines.
    pub items: BTreeSet<String>,
    /// What its `use` items bring into scope: name and path.
    pub imports: BTreeMap<String, Vec<String>>,
    /// Modules and enums whose names a `use …::*` brings into scope.
    pub globs: Vec<Vec<String>>,
    /// All that it names.
    pub named: Vec<Named>,
}

/// A function with a body.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name.
    pub name: String,
    /// Line of its signature.
    pub line: usize,
    /// Lines from its signature to the closing brace.
    pub lines: usize,
}

/// A source file.
#[derive(Clone, Debug)]
pub struct File {
    /// Its path below the workspace's folder.
    pub path: PathBuf,
    /// Number of the module whose file it is.
    pub module: usize,
    /// Its lines, all of them.
    pub lines: usize,
    /// Its functions, those of tests left out.
    pub functions: Vec<Function>,
}

/// All modules of one target. The root is module 0 and file 0.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// Its modules.
    pub modules: Vec<Module>,
    /// Its files.
    pub files: Vec<File>,
    /// Modules for tests alone, which are not read: their paths without `.rs`.
    pub tests: Vec<PathBuf>,
}

impl Tree {
    /// Reads a target from its root file, a path below the workspace's folder.
    ///
    /// # Errors
    /// If a file is missing or is not Rust.
    pub fn read(workspace: &Path, root: &Path) -> Result<Self> {
        let mut tree = Self::default();
        tree.modules.push(Module::default());
        let folder = root.parent().context("finding the root's folder")?;
        tree.file(workspace, root, folder, 0)?;
        Ok(tree)
    }

    /// Reads the file of a module whose children stand in `folder`.
    fn file(&mut self, workspace: &Path, path: &Path, folder: &Path, module: usize) -> Result<()> {
        let full = workspace.join(path);
        let text =
            fs::read_to_string(&full).with_context(|| format!("reading {}", path.display()))?;
        let parsed =
            syn::parse_file(&text).with_context(|| format!("parsing {}", path.display()))?;
        let file = self.files.len();
        self.files.push(File {
            path: path.to_owned(),
            module,
            lines: text.lines().count(),
            functions: Vec::new(),
        });
        self.modules[module].file = file;
        let mut reader = Reader {
            tree: self,
            file,
            module,
            folder: folder.to_owned(),
            outlined: Vec::new(),
        };
        for item in &parsed.items {
            reader.visit_item(item);
        }
        for child in reader.outlined {
            let path = child.found(workspace)?;
            self.file(workspace, &path, &child.folder, child.module)?;
        }
        Ok(())
    }

    /// The file of a module.
    #[must_use]
    pub fn file_of(&self, module: usize) -> usize {
        self.modules[module].file
    }

    /// The names of a module's ancestors and its own, from the root's child down; empty for the root.
    #[must_use]
    pub fn path_of(&self, module: usize) -> Vec<&str> {
        let mut names = Vec::new();
        let mut at = Some(module);
        while let Some(number) = at {
            let module = &self.modules[number];
            if module.parent.is_some() {
                names.push(module.name.as_str());
            }
            at = module.parent;
        }
        names.reverse();
        names
    }
}

/// A module that is declared with `mod name;`.
struct Outlined {
    module: usize,
    /// The files that it may be in.
    candidates: [PathBuf; 2],
    /// Where its own children are.
    folder: PathBuf,
}

impl Outlined {
    fn found(&self, workspace: &Path) -> Result<PathBuf> {
        let there = |path: &&PathBuf| workspace.join(path).is_file();
        self.candidates
            .iter()
            .find(there)
            .cloned()
            .with_context(|| format!("finding {}", self.candidates[0].display()))
    }
}

/// Reads the items of one file.
struct Reader<'a> {
    tree: &'a mut Tree,
    file: usize,
    module: usize,
    folder: PathBuf,
    outlined: Vec<Outlined>,
}

impl Reader<'_> {
    fn module(&mut self) -> &mut Module {
        &mut self.tree.modules[self.module]
    }

    fn name(&mut self, segments: Vec<String>, span: Span) {
        let line = span.start().line;
        if segments.len() > 1 {
            self.module().named.push(Named { segments, line });
        }
    }

    fn use_tree(&mut self, before: &[String], tree: &UseTree) {
        let with = |name: String| [before, &[name]].concat();
        match tree {
            UseTree::Path(path) => self.use_tree(&with(path.ident.to_string()), &path.tree),
            UseTree::Name(name) => self.import(before, &name.ident.to_string(), None, name.span()),
            UseTree::Rename(rename) => {
                let alias = rename.rename.to_string();
                self.import(
                    before,
                    &rename.ident.to_string(),
                    Some(alias),
                    rename.span(),
                );
            }
            UseTree::Glob(glob) => {
                self.name(before.to_vec(), glob.span());
                self.module().globs.push(before.to_vec());
            }
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.use_tree(before, tree);
                }
            }
        }
    }

    fn import(&mut self, before: &[String], name: &str, alias: Option<String>, span: Span) {
        // `use a::b::{self}` is `use a::b`.
        let path = match name {
            "self" => before.to_vec(),
            name => [before, &[name.to_owned()]].concat(),
        };
        let Some(last) = path.last().cloned() else {
            return;
        };
        self.name(path.clone(), span);
        self.module().imports.insert(alias.unwrap_or(last), path);
    }

    fn function(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let (first, last) = (signature.span().start().line, block.span().end().line);
        self.tree.files[self.file].functions.push(Function {
            name: signature.ident.to_string(),
            line: first,
            lines: last + 1 - first,
        });
    }

    /// Paths within a macro's tokens, and within the strings of an attribute (`#[serde(with = "crate::date")]`).
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut span = Span::call_site();
        // Colons since the last identifier.
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.name(std::mem::take(&mut path), span);
                        span = ident.span();
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                other => {
                    self.name(std::mem::take(&mut path), span);
                    colons = 0;
                    match other {
                        TokenTree::Group(group) => self.tokens(group.stream()),
                        TokenTree::Literal(literal) => self.literal(&literal),
                        _ => {}
                    }
                }
            }
        }
        self.name(path, span);
    }

    fn literal(&mut self, literal: &proc_macro2::Literal) {
        let text = literal.to_string();
        let path = text.trim_matches('"');
        let plain = |segment: &str| {
            !segment.is_empty() && segment.chars().all(|c| c.is_alphanumeric() || c == '_')
        };
        if path.len() + 2 == text.len() && path.split("::").all(plain) {
            let segments = path.split("::").map(str::to_owned).collect();
            self.name(segments, literal.span());
        }
    }

    fn define(&mut self, item: &Item) {
        let ident = match item {
            Item::Const(item) => &item.ident,
            Item::Enum(item) => &item.ident,
            Item::Fn(item) => &item.sig.ident,
            Item::Macro(item) => match &item.ident {
                Some(ident) => ident,
                None => return,
            },
            Item::Static(item) => &item.ident,
            Item::Struct(item) => &item.ident,
            Item::Trait(item) => &item.ident,
            Item::Type(item) => &item.ident,
            Item::Union(item) => &item.ident,
            _ => return,
        };
        let name = ident.to_string();
        self.module().items.insert(name);
    }

    fn child(&mut self, item: &syn::ItemMod) {
        let name = item.ident.to_string();
        let number = self.tree.modules.len();
        self.tree.modules.push(Module {
            name: name.clone(),
            parent: Some(self.module),
            file: self.file,
            ..Module::default()
        });
        self.module().children.insert(name.clone(), number);
        let folder = self.folder.join(&name);
        if let Some((_, items)) = &item.content {
            let outer = (self.module, std::mem::replace(&mut self.folder, folder));
            self.module = number;
            for item in items {
                self.visit_item(item);
            }
            (self.module, self.folder) = outer;
        } else {
            self.outlined.push(Outlined {
                module: number,
                candidates: [
                    self.folder.join(format!("{name}.rs")),
                    folder.join("mod.rs"),
                ],
                folder,
            });
        }
    }
}

impl<'ast> Visit<'ast> for Reader<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        if attributes(item).iter().any(is_test) {
            if let Item::Mod(item) = item {
                let path = self.folder.join(item.ident.to_string());
                self.tree.tests.push(path);
            }
            return;
        }
        self.define(item);
        match item {
            Item::Mod(item) => self.child(item),
            Item::Use(item) => self.use_tree(&[], &item.tree),
            other => visit::visit_item(self, other),
        }
    }

    fn visit_item_fn(&mut self, item: &'ast syn::ItemFn) {
        self.function(&item.sig, &item.block);
        visit::visit_item_fn(self, item);
    }

    fn visit_impl_item_fn(&mut self, item: &'ast syn::ImplItemFn) {
        if item.attrs.iter().any(is_test) {
            return;
        }
        self.function(&item.sig, &item.block);
        visit::visit_impl_item_fn(self, item);
    }

    fn visit_trait_item_fn(&mut self, item: &'ast syn::TraitItemFn) {
        if let Some(block) = &item.default {
            self.function(&item.sig, block);
        }
        visit::visit_trait_item_fn(self, item);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.leading_colon.is_none() {
            let segments = path.segments.iter();
            let segments = segments.map(|segment| segment.ident.to_string());
            self.name(segments.collect(), path.span());
        }
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        visit::visit_macro(self, item);
        self.tokens(item.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        match &attribute.meta {
            Meta::List(list) => self.tokens(list.tokens.clone()),
            // A doc comment is text: what it links to, it does not use.
            Meta::Path(_) | Meta::NameValue(_) => {}
        }
    }

    // `pub(in crate::a)` says who sees an item, it uses nothing.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}
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

/// `#[test]`, `#[cfg(test)]`, and `#[cfg(all(test, …))]`; what is compiled in other cases too is not of the tests alone.
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
