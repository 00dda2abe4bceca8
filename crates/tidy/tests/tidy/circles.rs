//! No import circle: a reader who first reads what a module imports comes to an end.
//!
//! A module is a file. It imports what it names by a path within its crate, in a `use` or
//! elsewhere. A parent that declares a child does not import it by that. A crate is a directory
//! below `src` with a `lib.rs` or a `main.rs`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use proc_macro2::{TokenStream, TokenTree};

use super::{files, has_ending, text};

/// Files that import each other and remain so, by crate; ARCHITECTURE.md says why.
const REMAINING: [(&str, &str); 6] = [
    ("crates/crash/src", "case, explore"),
    ("crates/crash/src", "workload, workloads::vocabulary"),
    ("crates/crash/src", "workloads, workloads::mixture"),
    ("crates/journal/src", "handle, journal, placer"),
    ("crates/powercut/src", "recorder, recorder::group"),
    (
        "crates/testkit/src",
        "world::model, world::model::group, world::model::synced",
    ),
];

/// A module's names, from the root of the crate on.
type Module = Vec<String>;

/// The imports of a crate's modules.
type Imports = BTreeMap<Module, BTreeSet<Module>>;

/// Returns the module at this path below `src`.
fn module(path: &Path) -> Module {
    let path = path.with_extension("");
    let names = path.iter().map(|name| name.to_string_lossy().into_owned());
    let mut names: Module = names.collect();
    if names == ["lib"] || names == ["main"] || names.ends_with(&["mod".to_owned()]) {
        names.pop();
    }
    names
}

/// Calls `see` with each path in the code of a module and of the modules inside it, and with the
/// module that has it. A path within braces is completed by `before`.
fn paths(
    code: TokenStream,
    module: &Module,
    before: &[String],
    see: &mut impl FnMut(&Module, &[String]),
) {
    let code: Vec<TokenTree> = code.into_iter().collect();
    let word = |n: usize| match code.get(n) {
        Some(TokenTree::Ident(word)) => Some(word.to_string()),
        _ => None,
    };
    let group = |n: usize| match code.get(n) {
        Some(TokenTree::Group(group)) => Some(group.stream()),
        _ => None,
    };
    let is = |n: usize, sign: char| match code.get(n) {
        Some(TokenTree::Punct(found)) => found.as_char() == sign,
        _ => false,
    };
    let mut n = 0;
    while n < code.len() {
        let Some(first) = word(n) else {
            if let Some(inner) = group(n) {
                paths(inner, module, &[], see);
            }
            n += 1;
            continue;
        };
        if first == "mod"
            && let (Some(name), Some(inner)) = (word(n + 1), group(n + 2))
        {
            paths(inner, &[&module[..], &[name]].concat(), &[], see);
            n += 3;
            continue;
        }
        // `pub(in crate::a)` says who may use something; it imports nothing.
        if first == "pub" && group(n + 1).is_some() {
            n += 2;
            continue;
        }
        if first == "as" && !before.is_empty() {
            n += 2;
            continue;
        }
        // `$crate` in a macro is the crate of the caller.
        let mut is_path = !before.is_empty();
        let is_of_macro = n > 0 && is(n - 1, '$');
        let mut path = [before, &[first]].concat();
        n += 1;
        while is(n, ':') && is(n + 1, ':') {
            (is_path, n) = (true, n + 2);
            if let Some(inner) = group(n) {
                paths(inner, module, &path, see);
                is_path = false;
            } else if is(n, '$') {
                path.push("$".to_owned());
                n += 1;
            } else if let Some(name) = word(n) {
                path.push(name);
            } else {
                break;
            }
            n += 1;
        }
        if is_path && !is_of_macro {
            see(module, &path);
        }
    }
}

/// Returns the modules of the crate in which a path ends. For a macro's variable, these are all
/// that it can be.
fn ends(modules: &BTreeSet<Module>, from: &Module, path: &[String]) -> Vec<Module> {
    let mut to = from.clone();
    for (n, name) in path.iter().enumerate() {
        let below = [&to[..], std::slice::from_ref(name)].concat();
        match name.as_str() {
            "crate" => to.clear(),
            "self" => {}
            "super" => _ = to.pop(),
            "$" => {
                let is_below = |m: &&Module| m.len() == below.len() && m.starts_with(&to);
                return modules.iter().filter(is_below).cloned().collect();
            }
            _ if modules.contains(&below) => to = below,
            // Another crate, or a name that some other import has brought.
            _ if n == 0 => return Vec::new(),
            _ => break,
        }
    }
    while !modules.contains(&to) {
        to.pop();
    }
    vec![to]
}

/// Returns what each of these modules imports, according to its code.
fn imports(sources: &BTreeMap<Module, String>) -> Imports {
    let modules: BTreeSet<Module> = sources.keys().cloned().collect();
    let of = |(module, code): (&Module, &String)| {
        let code = code
            .parse()
            .unwrap_or_else(|error| panic!("{module:?}: {error}"));
        let mut found = BTreeSet::new();
        paths(code, module, &[], &mut |from, path| {
            found.extend(ends(&modules, from, path));
        });
        found.remove(module);
        (module.clone(), found)
    };
    sources.iter().map(of).collect()
}

/// Returns the shortest way from a module back to itself, if there is one.
fn circle(imports: &Imports, module: &Module) -> Option<Vec<Module>> {
    let mut ways = vec![vec![module.clone()]];
    let mut seen = BTreeSet::new();
    while !ways.is_empty() {
        let mut longer = Vec::new();
        for way in ways {
            for next in &imports[way.last().expect("it begins with the module")] {
                let way = [&way[..], std::slice::from_ref(next)].concat();
                if next == module {
                    return Some(way);
                }
                if seen.insert(next) {
                    longer.push(way);
                }
            }
        }
        ways = longer;
    }
    None
}

/// Returns what a module imports, directly or not.
fn reached<'a>(imports: &'a Imports, module: &Module) -> BTreeSet<&'a Module> {
    let mut todo: Vec<&Module> = imports[module].iter().collect();
    let mut reached = BTreeSet::new();
    while let Some(module) = todo.pop() {
        if reached.insert(module) {
            todo.extend(&imports[module]);
        }
    }
    reached
}

/// Modules that all reach each other by their imports.
struct Tangle {
    modules: BTreeSet<Module>,
    /// The shortest circle of each module, each circle once.
    circles: Vec<Vec<Module>>,
}

fn name(module: &Module) -> String {
    if module.is_empty() {
        "lib".to_owned()
    } else {
        module.join("::")
    }
}

impl Tangle {
    fn names(&self) -> String {
        self.modules.iter().map(name).collect::<Vec<_>>().join(", ")
    }

    fn shown_circles(&self) -> Vec<String> {
        let shown = |way: &Vec<Module>| way.iter().map(name).collect::<Vec<_>>().join(" -> ");
        self.circles.iter().map(shown).collect()
    }
}

/// Returns every tangle of these modules.
fn tangles(sources: &BTreeMap<Module, String>) -> Vec<Tangle> {
    let imports = imports(sources);
    let reached: BTreeMap<&Module, BTreeSet<&Module>> = imports
        .keys()
        .map(|module| (module, reached(&imports, module)))
        .collect();
    let mut found: Vec<Tangle> = Vec::new();
    for module in imports.keys() {
        if !reached[module].contains(module) || found.iter().any(|t| t.modules.contains(module)) {
            continue;
        }
        let modules: BTreeSet<Module> = reached[module]
            .iter()
            .filter(|other| reached[**other].contains(module))
            .map(|other| (*other).clone())
            .collect();
        let (mut seen, mut circles) = (BTreeSet::new(), Vec::new());
        for way in modules.iter().filter_map(|module| circle(&imports, module)) {
            if seen.insert(way.iter().cloned().collect::<BTreeSet<Module>>()) {
                circles.push(way);
            }
        }
        found.push(Tangle { modules, circles });
    }
    found
}

/// Returns the code of each crate, by its directory.
fn crates() -> BTreeMap<PathBuf, BTreeMap<Module, String>> {
    let code: Vec<PathBuf> = files()
        .into_iter()
        .filter(|path| has_ending(path, "rs"))
        .collect();
    let is_root = |path: &&PathBuf| {
        let is_source = path.iter().any(|name| name == "src");
        is_source && (path.ends_with("lib.rs") || path.ends_with("main.rs"))
    };
    let mut crates: BTreeMap<PathBuf, BTreeMap<Module, String>> = code
        .iter()
        .filter(is_root)
        .map(|root| (root.with_file_name(""), BTreeMap::new()))
        .collect();
    for path in code {
        let above = path.ancestors().map(|dir| dir.join(""));
        if let Some(dir) = above.into_iter().find(|dir| crates.contains_key(dir)) {
            let below = module(path.strip_prefix(&dir).expect("below"));
            crates
                .get_mut(&dir)
                .expect("found")
                .insert(below, text(&path));
        }
    }
    crates
}

#[test]
fn modules_do_not_import_each_other() {
    let remaining: BTreeSet<(PathBuf, String)> = REMAINING
        .iter()
        .map(|(dir, names)| (Path::new(dir).join(""), (*names).to_owned()))
        .collect();
    let (mut found, mut wrong) = (BTreeSet::new(), Vec::new());
    for (dir, sources) in crates() {
        for tangle in tangles(&sources) {
            let of_crate = (dir.clone(), tangle.names());
            if !remaining.contains(&of_crate) {
                wrong.push(format!(
                    "{}: {} files import each other: {}. Circles:\n    {}",
                    dir.display(),
                    tangle.modules.len(),
                    tangle.names(),
                    tangle.shown_circles().join("\n    ")
                ));
            }
            found.insert(of_crate);
        }
    }
    for (dir, names) in remaining.difference(&found) {
        let dir = dir.display();
        wrong.push(format!(
            "{dir}: {names} no longer import each other so: mend REMAINING"
        ));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_judge_of_circles_can_fail() {
    let tangles_of = |sources: &[(&str, &str)]| {
        let of = |(path, code): &(&str, &str)| (module(Path::new(path)), (*code).to_owned());
        tangles(&sources.iter().map(of).collect())
    };
    let circles_of = |sources: &[(&str, &str)]| {
        let shown = tangles_of(sources).into_iter();
        shown.flat_map(|t| t.shown_circles()).collect::<Vec<_>>()
    };
    let found = circles_of(&[
        ("lib.rs", "mod a; mod b; mod c; mod d; pub use a::A;"),
        (
            "a.rs",
            "mod below; fn a() { below::b(); } mod tests { use super::*; }",
        ),
        ("a/below.rs", "use crate::{b::B, c::{self as d, C}};"),
        (
            "b.rs",
            "/// [`C`](crate::c::C) \"\nstruct B; const WORDS: &str = \"crate::a::A\";",
        ),
        ("c/mod.rs", "mod leaf; use self::leaf::Leaf; use crate::b;"),
        ("c/leaf.rs", "macro_rules! m { () => { $crate::a::A }; }"),
        (
            "d.rs",
            "use std::a::A; pub(in crate::d) fn f(b: B) { b.crate_a(); }",
        ),
    ]);
    assert!(found.is_empty(), "{found:?}");
    for (back, circle) in [
        ("use super::A;", "a -> a::below -> a"),
        ("const A: A = super::super::a::A;", "a -> a::below -> a"),
        ("mod tests { use super::super::A; }", "a -> a::below -> a"),
        ("use crate::*;", "lib -> a -> a::below -> lib"),
        (
            "use super::super::{c::{C, D}, b};",
            "a::below -> c -> a::below",
        ),
        ("m! { crate::$each::ROW }", "a -> a::below -> a"),
    ] {
        let found = circles_of(&[
            ("lib.rs", "mod a; mod c; pub use a::A;"),
            ("a.rs", "mod below; fn a() { below::b(); }"),
            ("a/below.rs", back),
            ("b.rs", ""),
            ("c.rs", "fn c() { let _ = [crate::a::below::b()]; }"),
        ]);
        assert_eq!(
            found.first().map(String::as_str),
            Some(circle),
            "{back}: {found:?}"
        );
    }
    // Circles that share a module are one tangle; a module that only leads to a circle is not in
    // it.
    let found = tangles_of(&[
        ("lib.rs", "use a::A;"),
        ("a.rs", "use crate::b::B;"),
        ("b.rs", "use crate::{a::A, c::C};"),
        ("c.rs", "use crate::b::B; use crate::d::D;"),
        ("d.rs", "use crate::e::E;"),
        ("e.rs", "use crate::d::D;"),
    ]);
    let shown: Vec<_> = found.iter().map(Tangle::names).collect();
    assert_eq!(shown, ["a, b, c", "d, e"]);
    assert_eq!(found[0].shown_circles(), ["a -> b -> a", "c -> b -> c"]);
}
