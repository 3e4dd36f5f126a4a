//! Reads the modules of a target from its source files. Tests are left out.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{Span, TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, Meta, UseTree};

use crate::test_code;
use crate::tree::{File, Function, Module, Named, Tree};

/// Reads a target from its root file, a path below the workspace's folder.
///
/// # Errors
/// If a file is missing or is not Rust.
pub fn read(workspace: &Path, root: &Path) -> Result<Tree> {
    let mut tree = Tree::default();
    tree.modules.push(Module::default());
    let folder = root.parent().context("finding the root's folder")?;
    read_file(&mut tree, workspace, root, folder, 0)?;
    Ok(tree)
}

/// Reads the file of a module whose children stand in `folder`.
fn read_file(
    tree: &mut Tree,
    workspace: &Path,
    path: &Path,
    folder: &Path,
    module: usize,
) -> Result<()> {
    let full = workspace.join(path);
    let text = fs::read_to_string(&full).with_context(|| format!("reading {}", path.display()))?;
    let parsed = syn::parse_file(&text).with_context(|| format!("parsing {}", path.display()))?;
    let file = tree.files.len();
    tree.files.push(File {
        path: path.to_owned(),
        module,
        lines: text.lines().count(),
        functions: Vec::new(),
    });
    tree.modules[module].file = file;
    let mut reader = Reader {
        tree,
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
        read_file(tree, workspace, &path, &child.folder, child.module)?;
    }
    Ok(())
}

/// A module that is declared with `mod name;`.
struct Outlined {
    module: usize,
    /// The two candidates for its file.
    candidates: [PathBuf; 2],
    /// The folder of its children.
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
        // The number of colons since the last identifier.
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
        if test_code::is_item(item) {
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
        if test_code::any(&item.attrs) {
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
            // A doc comment is text: a link in it is not a use.
            Meta::Path(_) | Meta::NameValue(_) => {}
        }
    }

    // `pub(in crate::a)` restricts the visibility of an item; it is not a use.
    fn visit_vis_restricted(&mut self, _: &'ast syn::VisRestricted) {}
}
