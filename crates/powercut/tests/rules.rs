//! Each rule of the models, by recordings of a few calls and the states that they may leave.

use std::collections::BTreeMap;
use std::sync::Arc;

use stetfs_powercut::call::{Attribute, Call, Recording, Slot, What};
use stetfs_powercut::content::{Bytes, Content};
use stetfs_powercut::model::Model;
use stetfs_powercut::states::{Effort, states};
use stetfs_powercut::tree::{Body, Node, Object, ROOT, Tree};

/// A recording, built call by call.
struct Program {
    recording: Recording,
    next: u32,
    names: BTreeMap<String, Object>,
    sizes: BTreeMap<Object, u64>,
}

fn node(mode: u16, body: Body) -> Arc<Node> {
    Arc::new(Node::plain(mode, body))
}

impl Program {
    /// Begins with these files, all durable.
    fn new(files: &[(&str, &str)]) -> Self {
        let empty = serde_json::from_str(r#"{"nodes":{}}"#).unwrap();
        let mut new = Self {
            recording: Recording {
                before: empty,
                calls: Vec::new(),
                processes: Vec::new(),
                has_groups: false,
            },
            next: 1,
            names: BTreeMap::new(),
            sizes: BTreeMap::new(),
        };
        let before = &mut new.recording.before;
        before.insert(ROOT, node(0o40755, Body::Dir(BTreeMap::new())));
        for (name, text) in files {
            let object = Object(new.next);
            new.next += 1;
            let mut content = Content::default();
            content.set_size(text.len() as u64);
            content.write(0, text.as_bytes());
            before.insert(object, node(0o100644, Body::File(content)));
            before.set_name(ROOT, name.as_bytes(), Some(object));
            new.names.insert((*name).to_owned(), object);
            new.sizes.insert(object, text.len() as u64);
        }
        new
    }

    fn call(mut self, what: What) -> Self {
        self.recording.calls.push(Call {
            by: None,
            time: (0, 0),
            path: String::new(),
            what,
        });
        self
    }

    /// The directory and the last name of a path with at most two names.
    fn slot(&self, path: &str) -> Slot {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let dir = match dir {
            "" => ROOT,
            dir => self.names[dir],
        };
        let name = name.as_bytes().to_vec();
        Slot { dir, name }
    }

    fn make(mut self, path: &str, node: Arc<Node>) -> Self {
        let (object, slot) = (Object(self.next), self.slot(path));
        self.next += 1;
        self.names.insert(path.to_owned(), object);
        self.call(What::Make { slot, object, node })
    }

    fn create(self, path: &str) -> Self {
        self.make(path, node(0o100644, Body::File(Content::default())))
    }

    fn mkdir(self, path: &str) -> Self {
        self.make(path, node(0o40755, Body::Dir(BTreeMap::new())))
    }

    fn write(mut self, name: &str, offset: u64, text: &str) -> Self {
        let file = self.names[name];
        let size = self.sizes.get(&file).copied().unwrap_or(0);
        let end = offset + text.len() as u64;
        self.sizes.insert(file, size.max(end));
        let bytes = Bytes(text.as_bytes().into());
        self.call(What::Write {
            file,
            offset,
            bytes,
            size,
        })
    }

    fn truncate(mut self, name: &str, to: u64) -> Self {
        let file = self.names[name];
        let from = self.sizes.insert(file, to).unwrap_or(0);
        self.call(What::Resize { file, from, to })
    }

    fn close(self, name: &str) -> Self {
        let file = self.names[name];
        self.call(What::Close { file })
    }

    fn chmod(self, name: &str, mode: u16) -> Self {
        let object = self.names[name];
        let attributes = vec![Attribute::Mode(0o100000 | mode)];
        self.call(What::Set { object, attributes })
    }

    fn rename(mut self, from: &str, to: &str) -> Self {
        let object = self.names.remove(from).unwrap();
        let replaced = self.names.insert(to.to_owned(), object);
        let what = What::Rename {
            from: (self.slot(from), object),
            to: (self.slot(to), replaced),
            to_path: to.to_owned(),
            behind: None,
            whiteout: None,
        };
        self.call(what)
    }

    fn fsync(self, name: &str) -> Self {
        let object = self.names[name];
        let datasync = false;
        self.call(What::Fsync { object, datasync })
    }

    fn fdatasync(self, name: &str) -> Self {
        let object = self.names[name];
        let datasync = true;
        self.call(What::Fsync { object, datasync })
    }

    fn fsync_dir(self) -> Self {
        let (object, datasync) = (ROOT, false);
        self.call(What::Fsync { object, datasync })
    }

    /// Returns the trees that a power cut after all calls can leave: each path with its text.
    /// Directories end with a slash.
    fn left(&self, model: &str) -> Vec<BTreeMap<String, String>> {
        let model: Model = model.parse().unwrap();
        let arrangement = model.arrange(&self.recording);
        let calls = self.recording.calls.len();
        let effort = Effort {
            all: 1 << 16,
            ..Effort::default()
        };
        let found = states(&arrangement, calls, &effort);
        assert!(found.complete, "these programs have few states");
        let trees = found.cuts.iter().map(|cut| {
            let end = arrangement.ends[calls];
            shown(&arrangement.tree(&self.recording, &cut.there, end))
        });
        trees.collect()
    }

    /// True if a power cut can leave such a tree.
    fn can(&self, model: &str, is_so: impl Fn(&BTreeMap<String, String>) -> bool) -> bool {
        self.left(model).iter().any(is_so)
    }
}

fn shown(tree: &Tree) -> BTreeMap<String, String> {
    let all = tree.paths().into_iter().map(|(path, object)| {
        let node = tree.get(object).unwrap();
        match &node.body {
            Body::File(content) => {
                let mut bytes = vec![0; content.size() as usize];
                content.read(0, &mut bytes);
                let text = String::from_utf8(bytes).unwrap().replace('\0', ".");
                (path, format!("{:o} {text}", node.mode & 0o777))
            }
            _ => (path + "/", String::new()),
        }
    });
    all.collect()
}

const ALL: [&str; 5] = [
    "ext4-ordered",
    "ext4-dioread-lock",
    "ext4-writeback",
    "ext4-journal",
    "posix",
];

/// All models that do not put data into the journal.
const NOT_JOURNALED: [&str; 4] = [
    "ext4-ordered",
    "ext4-dioread-lock",
    "ext4-writeback",
    "posix",
];

/// Returns the models that can leave such a tree.
fn who(program: &Program, is_so: impl Fn(&BTreeMap<String, String>) -> bool) -> Vec<&'static str> {
    let can = |model: &&str| program.can(model, &is_so);
    ALL.into_iter().filter(can).collect()
}

fn is(text: &'static str) -> impl Fn(Option<&String>) -> bool {
    move |found| found.is_some_and(|found| found.get(4..) == Some(text))
}

#[test]
fn names_persist_in_any_order_without_a_journal() {
    let program = Program::new(&[]).create("a").create("b");
    let overtaken = |t: &BTreeMap<_, _>| t.contains_key("b") && !t.contains_key("a");
    assert_eq!(who(&program, overtaken), ["posix"]);
    assert_eq!(who(&program, BTreeMap::is_empty), ALL);
}

#[test]
fn fsync_of_a_file_does_not_cover_its_name_without_a_journal() {
    let program = Program::new(&[]).create("a").write("a", 0, "x").fsync("a");
    assert_eq!(who(&program, |t| !t.contains_key("a")), ["posix"]);
    assert_eq!(who(&program, |t| is("")(t.get("a"))), [""; 0]);
}

#[test]
fn fsync_of_a_directory_covers_names_and_not_what_they_name() {
    let program = Program::new(&[]).create("a").write("a", 0, "x").fsync_dir();
    assert_eq!(who(&program, |t| !t.contains_key("a")), [""; 0]);
    // In data=journal the write follows the name in the journal, and may be lost too.
    assert_eq!(who(&program, |t| is("")(t.get("a"))), ALL);
}

#[test]
fn with_a_journal_a_sync_commits_what_was_before_in_other_files_too() {
    let program = Program::new(&[("b", "old")])
        .create("a")
        .write("b", 0, "new")
        .fsync("b");
    assert_eq!(who(&program, |t| !t.contains_key("a")), ["posix"]);
    // Changes that came after the last change of the synced file may be missing.
    let program = Program::new(&[("b", "old")])
        .write("b", 0, "new")
        .create("a")
        .fsync("b");
    assert_eq!(who(&program, |t| !t.contains_key("a")), ALL);
}

#[test]
fn lengths_come_before_data_where_nothing_waits_for_it() {
    let program = Program::new(&[]).create("a").write("a", 0, "text");
    assert_eq!(
        who(&program, |t| is("....")(t.get("a"))),
        ["ext4-ordered", "ext4-writeback", "posix"]
    );
    assert_eq!(who(&program, |t| is("")(t.get("a"))), ALL);
}

#[test]
fn within_an_allocated_block_the_length_does_not_wait_for_the_data() {
    let program = Program::new(&[("log", "one\n")]).write("log", 4, "two\n");
    assert_eq!(
        who(&program, |t| is("one\n....")(t.get("log"))),
        NOT_JOURNALED
    );
}

#[test]
fn data_is_torn_between_sectors_and_in_a_journal_between_blocks() {
    let (old, new) = ("o".repeat(1024), "n".repeat(1024));
    let program = Program::new(&[("a", &old)]).write("a", 0, &new);
    let torn = |t: &BTreeMap<String, String>| {
        let text = &t["a"][4..];
        text.contains('o') && text.contains('n')
    };
    assert_eq!(who(&program, torn), NOT_JOURNALED);
    let within = |t: &BTreeMap<String, String>| t["a"][4..516].contains("on");
    assert_eq!(who(&program, within), [""; 0]);
}

#[test]
fn an_append_over_blocks_is_torn_everywhere() {
    let program = Program::new(&[])
        .create("a")
        .write("a", 0, &"x".repeat(6000));
    let short = |t: &BTreeMap<String, String>| t.get("a").is_some_and(|text| text.len() == 4100);
    assert_eq!(who(&program, short), ALL);
    // Only posix allows a cut within a block.
    let short = |t: &BTreeMap<String, String>| t.get("a").is_some_and(|text| text.len() == 516);
    assert_eq!(who(&program, short), ["posix"]);
}

#[test]
fn a_rename_over_a_file_waits_for_the_blocks_of_the_new_one() {
    let save = |program: Program| {
        let program = program.create("tmp").write("tmp", 0, "new").close("tmp");
        program.rename("tmp", "config")
    };
    let program = save(Program::new(&[("config", "old")]));
    assert_eq!(who(&program, |t| is("")(t.get("config"))), ["posix"]);
    // The block is allocated by then, but need not be written.
    assert_eq!(
        who(&program, |t| is("...")(t.get("config"))),
        ["ext4-ordered", "ext4-writeback", "posix"]
    );
    // If no file had that name, nothing waits.
    let program = save(Program::new(&[]));
    let empty = |t: &BTreeMap<String, String>| is("")(t.get("config"));
    assert_eq!(who(&program, empty), NOT_JOURNALED);
}

#[test]
fn what_was_cut_to_nothing_and_closed_is_written_before_later_changes() {
    let program = Program::new(&[("config", "old")])
        .truncate("config", 0)
        .write("config", 0, "new");
    assert_eq!(who(&program, |t| is("")(t.get("config"))), ALL);
    let program = program.close("config").create("done");
    let done_and_empty =
        |t: &BTreeMap<String, String>| t.contains_key("done") && is("")(t.get("config"));
    assert_eq!(who(&program, done_and_empty), ["posix"]);
}

#[test]
fn a_rename_is_atomic_also_between_directories() {
    let program = Program::new(&[("a", "x")])
        .mkdir("d")
        .fsync_dir()
        .rename("a", "d/b");
    let twice = |t: &BTreeMap<String, String>| t.contains_key("a") == t.contains_key("d/b");
    assert_eq!(who(&program, twice), [""; 0]);
}

#[test]
fn directories_are_not_moved_below_themselves() {
    let program = Program::new(&[])
        .mkdir("a")
        .mkdir("a/b")
        .fsync_dir()
        .rename("a/b", "b")
        .rename("a", "b/a");
    let gone = |t: &BTreeMap<String, String>| !t.contains_key("a/") && !t.contains_key("b/");
    assert_eq!(who(&program, gone), [""; 0]);
}

#[test]
fn fdatasync_does_not_cover_permissions() {
    let change = || Program::new(&[("a", "old")]).chmod("a", 0o600);
    let old_mode = |t: &BTreeMap<String, String>| t["a"].starts_with("644");
    let program = change().fdatasync("a");
    assert!(who(&program, old_mode).contains(&"posix"));
    assert_eq!(who(&change().fsync("a"), old_mode), [""; 0]);
}

#[test]
fn sync_covers_everything() {
    let program = Program::new(&[("b", "old")])
        .create("a")
        .write("a", 0, "text")
        .write("b", 0, "new")
        .call(What::Sync);
    for model in ALL {
        assert_eq!(program.left(model).len(), 1, "{model}");
    }
}

#[test]
fn data_in_the_journal_persists_in_order() {
    let program = Program::new(&[("a", "old"), ("b", "old")])
        .write("a", 0, "new")
        .write("b", 0, "new");
    let overtaken = |t: &BTreeMap<String, String>| is("old")(t.get("a")) && is("new")(t.get("b"));
    assert_eq!(who(&program, overtaken), NOT_JOURNALED);
}

#[test]
fn a_block_that_a_cut_leaves_is_written_before_the_cut_persists() {
    let program = Program::new(&[("a", "secret")])
        .truncate("a", 2)
        .write("a", 2, "ND");
    assert_eq!(who(&program, |t| is("seND..")(t.get("a"))), NOT_JOURNALED);
}

#[test]
fn what_is_behind_a_cut_does_not_come_back() {
    let program = Program::new(&[("a", "secret")])
        .truncate("a", 0)
        .truncate("a", 6)
        .write("a", 0, "pub");
    let mixed = |t: &BTreeMap<String, String>| is("pubret")(t.get("a"));
    assert_eq!(who(&program, mixed), [""; 0]);
    assert!(program.can("posix", |t| is("pub...")(t.get("a"))));
}

/// The block stays, and its rest is zeroed in place, as data is.
#[test]
fn what_is_behind_a_cut_in_its_block_comes_back_where_zeros_are_not_ordered() {
    let program = Program::new(&[("a", "secret")])
        .truncate("a", 2)
        .truncate("a", 6);
    let short = |t: &BTreeMap<String, String>| is("se")(t.get("a"));
    assert_eq!(who(&program, short), ALL);
    // With a journal, what came later is there only with the cut.
    let later = program.create("b");
    let back = |t: &BTreeMap<String, String>| t.contains_key("b") && is("secret")(t.get("a"));
    assert_eq!(who(&later, back), ["ext4-writeback", "posix"]);
}
