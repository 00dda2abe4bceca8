//! What a run shows at its moments without a power cut.
//!
//! Whoever has no check asks that a power cut shows nothing else: nothing that killing the program
//! at some moment would not have left, and nothing older than its last promise. Where files are
//! looked at, names that are there neither before the run nor after it do not count: what a power
//! cut leaves under a temporary name is never read.

use std::collections::BTreeMap;
use std::fs::File;
use std::hash::Hasher;
use std::io::{self, Read, Seek, SeekFrom};

use hashbrown::HashMap;

use crate::call::Recording;
use crate::model::Had;
use crate::run::{End, tail};
use crate::tree::{Digest, Tree, hashers};

/// At most this many files of a state are named.
const NAMED: usize = 5;

/// At most this many things that a file was are named.
const WAS: usize = 4;

/// What a command printed about a state.
#[derive(Clone, Debug)]
pub struct Printed {
    end: End,
    digest: Digest,
    /// The last 16 KiB of it, and of its standard error.
    text: String,
}

impl Printed {
    /// Reads a command's standard output. `end`: how it ended, and the end of its standard error,
    /// which is not compared.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn new((end, complaints): (End, &str), stdout: &mut File) -> io::Result<Self> {
        stdout.seek(SeekFrom::Start(0))?;
        let (mut hashers, mut piece) = (hashers(), vec![0; 64 << 10]);
        loop {
            let n = stdout.read(&mut piece)?;
            if n == 0 {
                break;
            }
            hashers
                .iter_mut()
                .for_each(|hasher| hasher.write(&piece[..n]));
        }
        Ok(Self {
            end,
            digest: hashers.map(|hasher| hasher.finish()),
            text: tail(stdout)? + complaints,
        })
    }

    /// How the command ended.
    pub fn end(&self) -> End {
        self.end
    }

    /// The end of what it printed.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Whether another run printed the same and ended in the same way.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.end, self.digest) == (other.end, other.digest)
    }
}

/// A verdict on a state: how it is said to have ended, and why.
pub type Said = (End, String);

/// What a run showed.
#[derive(Debug)]
pub enum Shown {
    /// To a command.
    Printed(Prints),
    /// As files.
    Files(Files),
}

impl Shown {
    /// The number of different moments.
    pub fn moments(&self) -> usize {
        match self {
            Self::Printed(prints) => prints.moments,
            Self::Files(files) => files.moments,
        }
    }
}

/// What a command printed at the moments of a run.
#[derive(Debug)]
pub struct Prints {
    moments: usize,
    /// The number of promises when each was printed last.
    known: HashMap<(End, Digest), usize>,
}

/// What was at each path at the moments of a run.
#[derive(Debug)]
pub struct Files {
    moments: usize,
    known: BTreeMap<String, Path>,
}

/// A path of the run.
#[derive(Debug, Default)]
struct Path {
    /// What was there.
    was: HashMap<Option<Digest>, Was>,
    /// Something was there before the run, or after it.
    stays: bool,
}

/// What was at a path.
#[derive(Debug)]
struct Was {
    /// The number of promises when it was last there.
    marks: usize,
    /// It in words.
    text: String,
}

impl Prints {
    /// Runs the command at each moment of a recording: `print` is told what is there, and the
    /// promises until then.
    ///
    /// # Errors
    /// Those of `print`.
    pub fn of<E>(
        recording: &Recording,
        mut print: impl FnMut(&Tree, &[&str]) -> Result<Printed, E>,
    ) -> Result<Self, E> {
        let had = Had::new(recording);
        let moments = had.moments();
        let mut known = HashMap::new();
        for moment in &moments {
            let marks: Vec<&str> = recording.marks(*moment).collect();
            let printed = print(&had.after(*moment), &marks)?;
            known.insert((printed.end, printed.digest), marks.len());
        }
        Ok(Self {
            moments: moments.len(),
            known,
        })
    }

    /// Judges what the command printed about a state after these promises.
    pub fn judge(&self, printed: &Printed, marks: &[&str]) -> Said {
        let last = self.known.get(&(printed.end, printed.digest));
        let (end, mut why) = match last {
            Some(last) if *last >= marks.len() => return (End::Exited(0), String::new()),
            Some(last) => (End::TooOld, only_before(*last, marks) + "\n"),
            None => (End::NeverShown, String::new()),
        };
        if printed.end != End::Exited(0) {
            why += &format!("the command {}\n", printed.end.text());
        }
        (end, why + &printed.text)
    }
}

impl Files {
    /// Looks at the files at each moment of a recording.
    pub fn of(recording: &Recording) -> Self {
        let had = Had::new(recording);
        let moments = had.moments();
        let mut files: BTreeMap<String, Path> = BTreeMap::new();
        for (n, moment) in moments.iter().enumerate() {
            let now = recording.marks(*moment).count();
            let there = had.after(*moment).files();
            for (path, known) in &mut files {
                if !there.contains_key(path) {
                    known.was.entry(None).or_insert_with(Was::nothing).marks = now;
                }
            }
            for (path, (digest, text)) in there {
                let known = files.entry(path).or_insert_with(|| {
                    let mut known = Path::default();
                    if let Some(before) = n.checked_sub(1) {
                        let nothing = known.was.entry(None).or_insert_with(Was::nothing);
                        nothing.marks = recording.marks(moments[before]).count();
                    }
                    known
                });
                known.stays |= n == 0 || n + 1 == moments.len();
                let new = || Was { marks: now, text };
                known.was.entry(Some(digest)).or_insert_with(new).marks = now;
            }
        }
        Self {
            moments: moments.len(),
            known: files,
        }
    }

    /// Judges the files of a state after these promises.
    pub fn judge(&self, tree: &Tree, marks: &[&str]) -> Said {
        let (known, there) = (&self.known, tree.files());
        let (mut never, mut old) = (Vec::new(), Vec::new());
        let new = there.keys().filter(|path| !known.contains_key(*path));
        for path in known.keys().chain(new) {
            let (digest, text) = match there.get(path) {
                Some((digest, text)) => (Some(*digest), text.as_str()),
                None => (None, NOTHING),
            };
            let was = known.get(path).map(|known| known.was.get(&digest));
            match was.flatten() {
                _ if known.get(path).is_some_and(|known| !known.stays) => {}
                Some(was) if was.marks >= marks.len() => {}
                Some(was) => old.push(format!("{path}: {text}, {}", only_before(was.marks, marks))),
                None => never.push(format!("{path}: {text}{}", ever(text, known.get(path)))),
            }
        }
        let (end, mut lines) = match (never.is_empty(), old.is_empty()) {
            (true, true) => return (End::Exited(0), String::new()),
            (true, false) => (End::TooOld, old),
            (false, _) => (End::NeverShown, never),
        };
        let more = lines.len().saturating_sub(NAMED);
        lines.truncate(NAMED);
        if more > 0 {
            lines.push(format!("and {more} more"));
        }
        (end, lines.join("\n"))
    }
}

/// What is said of a path where nothing is.
const NOTHING: &str = "nothing";

impl Was {
    fn nothing() -> Self {
        Self {
            marks: 0,
            text: NOTHING.to_owned(),
        }
    }
}

/// Says that something was last there before a promise, after `last` others.
fn only_before(last: usize, marks: &[&str]) -> String {
    let promise = marks.get(last).copied().unwrap_or_default();
    format!("as only before the promise \"{promise}\"")
}

/// Says what was at a path in the run, where this is not what was there.
fn ever(text: &str, known: Option<&Path>) -> String {
    let Some(known) = known else {
        return "; the run never had this name".to_owned();
    };
    let mut texts: Vec<&str> = known.was.values().map(|was| was.text.as_str()).collect();
    if texts.contains(&text) {
        return ", but never with this content".to_owned();
    }
    texts.sort_unstable();
    texts.dedup();
    let more = texts.len() > WAS;
    texts.truncate(WAS);
    let others = if more { " or others" } else { "" };
    format!("; in the run it was {}{others}", texts.join(" or "))
}
