//! Layers as overlayfs leaves them, and their plans, without a mount.

use std::collections::BTreeMap;

use super::*;

/// A tree in memory; a node is a path.
#[derive(Default)]
struct Memory(BTreeMap<String, (About, Vec<Xattr>)>);

fn about(mode: u16) -> About {
    About {
        mode,
        uid: 0,
        gid: 0,
        rdev: (0, 0),
        atime: (0, 0),
        mtime: (0, 0),
    }
}

const DIR: u16 = mode::S_IFDIR | 0o755;
const FILE: u16 = 0o100_644;

impl Memory {
    /// `d` is a directory, `f` a file, `w` a whiteout; `o` an opaque directory, `c` a copied
    /// file, `m` a copied directory.
    fn new(paths: &[&str]) -> Self {
        let mut tree = Self::default();
        for line in ["d /u", "d /l"].iter().chain(paths) {
            let (kind, path) = line.split_once(' ').unwrap();
            let mark = |name: &str| (format!("trusted.overlay.{name}").into(), b"y".to_vec());
            let (mode, xattrs) = match kind {
                "d" => (DIR, vec![]),
                "o" => (DIR, vec![mark("opaque")]),
                "f" => (FILE, vec![]),
                "c" => (FILE, vec![mark("origin")]),
                "m" => (DIR, vec![mark("origin")]),
                _ => (mode::S_IFCHR, vec![]),
            };
            tree.0.insert(path.to_owned(), (about(mode), xattrs));
        }
        tree
    }

    fn plan(&self) -> Plan<String> {
        let planned = plan(self, &"/u".to_owned(), &"/l".to_owned());
        planned.unwrap_or_else(|_| panic!("no plan"))
    }

    /// Returns the changes, one word for each.
    fn words(&self) -> Vec<String> {
        let changes = self.plan().changes;
        let word = |change: &Change<String>| {
            let path = String::from_utf8_lossy(&change.path).into_owned();
            match &change.what {
                What::Remove { .. } => format!("-{path}"),
                What::Place { old: None, .. } => format!("+{path}"),
                What::Place { old: Some(_), .. } => format!("={path}"),
                What::Inside { .. } => format!("<{path}"),
                What::Attributes { .. } => format!("@{path}"),
            }
        };
        changes.iter().map(word).collect()
    }
}

impl Tree for Memory {
    type Node = String;
    type Error = ();

    fn children(&self, dir: &String) -> Result<Vec<Child<String>>, ()> {
        let below = format!("{dir}/");
        let child = |path: &String| {
            let name = path.strip_prefix(&below)?;
            (!name.contains('/')).then(|| (name.as_bytes().to_vec(), path.clone()))
        };
        Ok(self.0.keys().filter_map(child).collect())
    }

    fn child(&self, dir: &String, name: &[u8]) -> Result<Option<String>, ()> {
        let path = format!("{dir}/{}", String::from_utf8_lossy(name));
        Ok(self.0.contains_key(&path).then_some(path))
    }

    fn about(&self, node: &String) -> Result<About, ()> {
        Ok(self.0[node].0)
    }

    fn xattrs(&self, node: &String) -> Result<Vec<Xattr>, ()> {
        Ok(self.0[node].1.clone())
    }
}

#[test]
fn each_kind_of_entry_has_its_meaning() {
    let tree = Memory::new(&[
        "f /l/gone",
        "w /u/gone",
        "w /u/never",
        "f /u/new",
        "f /l/old",
        "c /u/old",
        "d /l/dir",
        "f /l/dir/a",
        "d /u/dir",
        "f /u/dir/b",
        "d /l/hidden",
        "f /l/hidden/a",
        "o /u/hidden",
        "f /u/hidden/b",
        "w /u/hidden/c",
        "d /l/was",
        "f /u/was",
        "f /l/is",
        "d /u/is",
    ]);
    assert_eq!(
        tree.words(),
        [
            "+dir/b",
            "-gone",
            "=hidden",
            "<hidden/b",
            "=is",
            "+new",
            "=old",
            "=was"
        ]
    );
    let plan = tree.plan();
    assert_eq!(plan.whiteouts, [("/u/hidden".to_owned(), b"c".to_vec())]);
    let marked: Vec<_> = plan.marks.iter().map(|(node, _)| node.as_str()).collect();
    assert_eq!(marked, ["/u/hidden", "/u/old"]);
    assert!(plan.conflicts.is_empty());
}

#[test]
fn what_is_gone_below_or_reserved_is_a_conflict() {
    let tree = Memory::new(&[
        "c /u/renamed",
        "m /u/changed",
        "d /u/.stetfs-tx",
        "d /u/d",
        "f /u/d/.stetfs-tx",
    ]);
    let conflicts = tree.plan().conflicts;
    assert_eq!(conflicts, [&b".stetfs-tx"[..], b"changed"]);
    assert_eq!(tree.words(), ["+d", "<d/.stetfs-tx", "+renamed"]);
}

#[test]
fn attributes_of_directories_that_stay_are_taken_over() {
    let mut tree = Memory::new(&["d /l/d", "d /u/d", "d /l/t", "d /u/t", "f /u/t/f"]);
    tree.0.get_mut("/u/d").unwrap().0.mode = mode::S_IFDIR | 0o700;
    let x = |name: &str| (name.as_bytes().to_vec(), b"1".to_vec());
    tree.0.get_mut("/u/d").unwrap().1 = vec![x("user.new"), x("user.overlay.impure")];
    tree.0.get_mut("/l/d").unwrap().1 = vec![x("user.old")];
    tree.0.get_mut("/u/t").unwrap().0.mtime = (1, 0);
    let plan = tree.plan();
    assert_eq!(tree.words(), ["@d", "+t/f", "@t"]);
    let What::Attributes { new, xattrs, .. } = &plan.changes[0].what else {
        panic!("{:?}", plan.changes[0]);
    };
    assert_eq!(new.mode, mode::S_IFDIR | 0o700);
    assert_eq!(xattrs, &(vec![x("user.new")], vec![b"user.old".to_vec()]));
    // A directory's times change with its content, so they are not listed.
    let listed: Vec<_> = listed(&plan.changes).map(|c| &c.path[..]).collect();
    assert_eq!(listed, [&b"d"[..], b"t/f"]);
}

#[test]
fn directories_that_lie_too_deep_are_refused() {
    let mut tree = Memory::new(&[]);
    let mut path = "/u".to_owned();
    for _ in 0..=DEPTH_MAX {
        path.push_str("/d");
        tree.0.insert(path.clone(), (about(DIR), Vec::new()));
    }
    let planned = plan(&tree, &"/u".to_owned(), &"/l".to_owned());
    assert!(matches!(planned, Err(Error::TooDeep(_))));
}
