//! Reads a trace of a program by strace: `strace -f -y -ttt -o FILE PROGRAM`.
//!
//! `-y` is needed: it says which file a descriptor is. With `-s 1000000`, the calls' own bytes are
//! in the trace and are written; otherwise bytes are drawn by the seed. Files that the program
//! found are made beforehand, as large as the trace shows that they were. Failed calls are left
//! out, and so is what strace does not see: writes to mapped memory, io_uring.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::{Bytes, Call, Calls, Pace, Place, What, read_text, renamed};

/// Reads a trace: the calls below a directory of the machine where it was made.
///
/// # Errors
/// The file; it names no file below the directory.
pub fn read(path: &Path, under: &str, pace: Pace, seed: u64) -> Result<Calls> {
    let name = path.display().to_string();
    let (before, calls) = parse(&read_text(path)?, under);
    ensure!(
        !calls.is_empty(),
        "{name}: no call below {under}; strace -f -y says which file a descriptor is"
    );
    Ok(Calls {
        name,
        before,
        calls,
        pace,
        seed,
    })
}

/// Returns the calls that make what was there before, and the calls of the trace.
fn parse(text: &str, under: &str) -> (Vec<Call>, Vec<Call>) {
    let mut trace = Trace {
        under: format!("{}/", under.trim_end_matches('/')),
        before: Before::default(),
        calls: Vec::new(),
        cwd: HashMap::new(),
        places: HashMap::new(),
        line: 0,
        at: None,
    };
    // strace prints a call in two parts when lines of other threads interrupt it.
    let mut begun: HashMap<&str, String> = HashMap::new();
    for (n, line) in text.lines().enumerate() {
        let (pid, at, rest) = head(line);
        trace.line = n + 1;
        trace.at = at;
        if let Some(first) = rest.strip_suffix("<unfinished ...>") {
            begun.insert(pid, first.trim_end().to_owned());
        } else if let Some((_, last)) = rest
            .strip_prefix("<... ")
            .and_then(|rest| rest.split_once(" resumed>"))
        {
            if let Some(first) = begun.remove(pid) {
                trace.call(pid, &format!("{first}{last}"));
            }
        } else {
            trace.call(pid, rest);
        }
    }
    (trace.before.calls(), trace.calls)
}

/// A line's process, time, and the rest of it.
fn head(line: &str) -> (&str, Option<Duration>, &str) {
    let is_digit = |c: char| c.is_ascii_digit();
    let (pid, rest) = match line.strip_prefix("[pid ") {
        Some(rest) => rest.split_once(']').unwrap_or(("", rest)),
        None => match line.split_once(' ') {
            Some((pid, rest)) if pid.chars().all(is_digit) && !pid.is_empty() => (pid, rest),
            _ => ("", line),
        },
    };
    let rest = rest.trim_start();
    let (word, after) = rest.split_once(' ').unwrap_or((rest, ""));
    match time(word) {
        Some(at) => (pid.trim(), Some(at), after.trim_start()),
        None => (pid.trim(), None, rest),
    }
}

/// `-ttt`: seconds since 1970; `-tt`, `-t`: the time of the day.
fn time(word: &str) -> Option<Duration> {
    let mut seconds = 0.0;
    for part in word.split(':') {
        seconds = seconds * 60.0 + part.parse::<f64>().ok()?;
    }
    Duration::try_from_secs_f64(seconds).ok()
}

/// What must be there when the trace begins.
#[derive(Default)]
struct Before {
    dirs: BTreeSet<String>,
    /// Files with the least number of bytes that they must have had.
    files: BTreeMap<String, u64>,
    /// Names that the trace has made or removed itself, and whether they are there now. They say
    /// nothing more of the time before.
    known: BTreeMap<String, bool>,
    /// Directories that the trace has made or renamed, and renamed names that may be directories.
    made: BTreeSet<String>,
    /// Old and new names of directories that the trace renamed, in their order. Files that it
    /// renamed, of which there may be any number, say nothing of other names.
    renamed: Vec<(String, String)>,
    /// First names of what the trace first shows in a rename. They are empty files, until a name
    /// below shows that one is a directory, or a call shows a size.
    unclear: BTreeSet<String>,
}

impl Before {
    /// Returns the name that something had before the trace renamed it, or a directory above it.
    fn first_name(&self, path: &str) -> String {
        let mut path = path.to_owned();
        for (from, to) in self.renamed.iter().rev() {
            if let Some(older) = renamed(&path, to, from) {
                path = older;
            } else if renamed(&path, from, to).is_some() {
                // The name was given away: what has it now came later.
                break;
            }
        }
        path
    }

    /// Returns the name that something had before the trace renamed a directory above it.
    fn origin(&self, path: &str) -> String {
        match path.rsplit_once('/') {
            Some((dir, name)) => format!("{}/{name}", self.first_name(dir)),
            None => path.to_owned(),
        }
    }

    /// Whether it is known to be a directory.
    fn is_dir(&self, path: &str) -> bool {
        self.made.contains(path) || self.dirs.contains(&self.origin(path))
    }

    /// Notes a file of this name: it was there before, unless the trace has made it.
    fn file(&mut self, path: &str, bytes: u64) {
        let first = self.first_name(path);
        if self.unclear.contains(&first) {
            let known = self.files.entry(first).or_default();
            *known = (*known).max(bytes);
            return;
        }
        let path = &*self.origin(path);
        self.parents(path);
        if let Some(known) = self.files.get_mut(path) {
            if self.known.contains_key(path) {
                return;
            }
            *known = (*known).max(bytes);
        } else if !self.known.contains_key(path) && !self.dirs.contains(path) {
            self.files.insert(path.to_owned(), bytes);
        }
    }

    fn dir(&mut self, path: &str) {
        let first = self.first_name(path);
        if !self.was_unclear_dir(&first) {
            self.first_dir(&self.origin(path));
        }
    }

    /// Notes that something first seen in a rename is a directory; false if it was seen before.
    fn was_unclear_dir(&mut self, first: &str) -> bool {
        let is_one = self.unclear.remove(first);
        if is_one {
            self.files.remove(first);
            self.dirs.insert(first.to_owned());
        }
        is_one
    }

    /// Notes a directory, by its first name.
    fn first_dir(&mut self, path: &str) {
        self.parents(path);
        if self.was_unclear_dir(path) {
            return;
        }
        if !path.is_empty() && !self.known.contains_key(path) {
            self.files.remove(path);
            self.dirs.insert(path.to_owned());
        }
    }

    /// Notes the directories above a first name.
    fn parents(&mut self, path: &str) {
        if let Some((dir, _)) = path.rsplit_once('/') {
            self.first_dir(dir);
        }
    }

    /// Notes a rename of something not seen before: perhaps a directory.
    fn unclear(&mut self, path: &str) {
        let first = self.first_name(path);
        self.file(path, 0);
        self.unclear.insert(first);
    }

    /// Notes a file that is changed or removed: its size from now on says nothing of before.
    fn changed(&mut self, path: &str, is_there: bool) {
        self.file(path, 0);
        self.unclear.remove(&self.first_name(path));
        self.settled(path, is_there);
    }

    /// Notes a name that the trace makes, has changed or removes: from now on it says nothing of
    /// before.
    fn settled(&mut self, path: &str, is_there: bool) {
        let path = self.origin(path);
        self.parents(&path);
        self.known.insert(path, is_there);
    }

    /// Whether such a file is known to exist.
    fn has(&self, path: &str) -> bool {
        let path = &*self.origin(path);
        let known = self.known.get(path).copied();
        known.unwrap_or_else(|| self.files.contains_key(path))
    }

    fn calls(&self) -> Vec<Call> {
        let call = |what| Call {
            line: 0,
            at: None,
            what,
        };
        let dirs = self.dirs.iter().map(|dir| What::Mkdir(dir.clone()));
        let files = self.files.iter().flat_map(|(path, bytes)| {
            let write = What::Write(path.clone(), Place::At(0), Bytes::Random(*bytes));
            let write = (*bytes > 0).then_some(write);
            std::iter::once(What::Create(path.clone())).chain(write)
        });
        dirs.chain(files).map(call).collect()
    }
}

struct Trace {
    /// The directory, with a slash behind it.
    under: String,
    before: Before,
    calls: Vec<Call>,
    /// Each process' working directory, as far as it was seen.
    cwd: HashMap<String, String>,
    /// Positions of descriptors; `None`: always behind the file's end. Processes that fork share
    /// them, so number and file are enough to know one.
    places: HashMap<(u32, String), Option<u64>>,
    line: usize,
    at: Option<Duration>,
}

/// The parts of a call.
struct Words<'t> {
    args: Vec<&'t str>,
    /// What it returned.
    result: i64,
    /// The file of the descriptor that it returned.
    opened: Option<&'t str>,
}

/// A call that succeeded.
struct Succeeded<'t> {
    pid: &'t str,
    name: &'t str,
    words: Words<'t>,
}

impl<'t> Succeeded<'t> {
    fn arg(&self, n: usize) -> Option<&'t str> {
        self.words.args.get(n).copied()
    }

    fn number(&self, n: usize) -> Option<u64> {
        self.arg(n)?.parse().ok()
    }

    fn done(&self) -> u64 {
        self.words.result.cast_unsigned()
    }
}

impl Trace {
    fn call(&mut self, pid: &str, text: &str) {
        let Some((name, words)) = words(text) else {
            return;
        };
        for arg in &words.args {
            if let Some((_, cwd)) = descriptor(arg).filter(|(number, _)| number.is_none()) {
                self.cwd.insert(pid.to_owned(), cwd.to_owned());
            }
        }
        if words.result >= 0 {
            // A call that is not understood is left out.
            let _ = self.succeeded(&Succeeded { pid, name, words });
        }
    }

    /// Returns the path below the traced directory; `None` for a path outside of it.
    fn inside(&self, path: &str) -> Option<String> {
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let clean: Vec<_> = path
            .split('/')
            .filter(|name| !matches!(*name, "" | "."))
            .collect();
        // `..` behind a symbolic link does not lead where it seems to. Programs rarely use it.
        if clean.contains(&"..") {
            return None;
        }
        let path = format!("/{}", clean.join("/"));
        match path.strip_prefix(&self.under) {
            Some(inside) => Some(inside.to_owned()),
            None => (format!("{path}/") == self.under).then(String::new),
        }
    }

    /// Returns the path of a call, from a directory or from the process's working directory.
    fn path(&self, pid: &str, dir: Option<&str>, arg: &str) -> Option<String> {
        let path = String::from_utf8_lossy(&string(arg)?).into_owned();
        if path.starts_with('/') {
            return self.inside(&path);
        }
        let from = match dir {
            Some(dir) => descriptor(dir)?.1,
            None => self.cwd.get(pid)?,
        };
        match path.as_str() {
            "" => self.inside(from),
            path => self.inside(&format!("{from}/{path}")),
        }
    }

    /// Returns a descriptor's number and file.
    fn file(&self, arg: &str) -> Option<(u32, String)> {
        let (number, path) = descriptor(arg)?;
        Some((number?, self.inside(path)?))
    }

    fn tell(&mut self, what: What) {
        self.calls.push(Call {
            line: self.line,
            at: self.at,
            what,
        });
    }

    /// Tells what a call did. `None` for a call that is not understood.
    fn succeeded(&mut self, call: &Succeeded<'_>) -> Option<()> {
        let families = [
            Self::descriptors,
            Self::transfers,
            Self::sizes,
            Self::syncs,
            Self::names,
            Self::moves,
            Self::looks,
        ];
        for family in families {
            if family(self, call)? {
                break;
            }
        }
        Some(())
    }

    /// Tells of descriptors and working directories. As each family below, returns true if the call
    /// is one of its own, and `None` if it does not understand the call.
    fn descriptors(&mut self, call: &Succeeded<'_>) -> Option<bool> {
        match call.name {
            "open" | "creat" => {
                let path = self.path(call.pid, None, call.arg(0)?)?;
                let flags = match call.name {
                    "creat" => "O_WRONLY|O_CREAT|O_TRUNC",
                    _ => call.arg(1)?,
                };
                self.opened(path, flags, &call.words);
            }
            "openat" | "openat2" => {
                let path = self.path(call.pid, call.arg(0), call.arg(1)?)?;
                self.opened(path, call.arg(2)?, &call.words);
            }
            "close" => {
                let (number, path) = self.file(call.arg(0)?)?;
                self.places.remove(&(number, path.clone()));
                let is_open = self.places.keys().any(|(_, open)| *open == path);
                if !is_open && self.before.has(&path) {
                    self.tell(What::Close(path));
                }
            }
            "dup" | "dup2" | "dup3" | "fcntl" => {
                let from = self.file(call.arg(0)?)?;
                if let (Some(place), Some(_)) = (self.places.get(&from).copied(), call.words.opened)
                {
                    let to = u32::try_from(call.words.result).ok()?;
                    self.places.insert((to, from.1), place);
                }
            }
            "lseek" => {
                let at = self.file(call.arg(0)?)?;
                if let Some(Some(place)) = self.places.get_mut(&at) {
                    *place = call.done();
                }
                if call.arg(2)? == "SEEK_END" && call.number(1) == Some(0) {
                    self.before.file(&at.1, call.done());
                }
            }
            "chdir" => {
                let path = String::from_utf8_lossy(&string(call.arg(0)?)?).into_owned();
                let path = match (path.starts_with('/'), self.cwd.get(call.pid)) {
                    (false, Some(from)) => format!("{from}/{path}"),
                    _ => path,
                };
                self.cwd.insert(call.pid.to_owned(), path);
            }
            _ => return Some(false),
        }
        Some(true)
    }

    /// Tells of reads and writes.
    fn transfers(&mut self, call: &Succeeded<'_>) -> Option<bool> {
        match call.name {
            "read" | "readv" => self.transfer(call.arg(0)?, None, call.done(), None),
            "pread64" | "preadv" | "preadv2" => {
                self.transfer(call.arg(0)?, call.number(3), call.done(), None)
            }
            "write" => self.transfer(call.arg(0)?, None, call.done(), Some(call.arg(1)?)),
            "writev" => self.transfer(call.arg(0)?, None, call.done(), Some("")),
            "pwrite64" => self.transfer(
                call.arg(0)?,
                call.number(3),
                call.done(),
                Some(call.arg(1)?),
            ),
            "pwritev" | "pwritev2" => {
                self.transfer(call.arg(0)?, call.number(3), call.done(), Some(""))
            }
            "copy_file_range" => {
                let offset = |arg: &str| arg.trim_matches(['[', ']']).parse().ok();
                self.transfer(call.arg(0)?, offset(call.arg(1)?), call.done(), None);
                self.transfer(call.arg(2)?, offset(call.arg(3)?), call.done(), Some(""));
            }
            "sendfile" | "sendfile64" => {
                self.transfer(call.arg(1)?, None, call.done(), None);
                self.transfer(call.arg(0)?, None, call.done(), Some(""));
            }
            _ => return Some(false),
        }
        Some(true)
    }

    /// Tells of lengths and allocations.
    fn sizes(&mut self, call: &Succeeded<'_>) -> Option<bool> {
        match call.name {
            "ftruncate" | "ftruncate64" => {
                let (_, path) = self.file(call.arg(0)?)?;
                self.resize(path, call.number(1)?);
            }
            "truncate" | "truncate64" => {
                let path = self.path(call.pid, None, call.arg(0)?)?;
                self.resize(path, call.number(1)?);
            }
            "fallocate" => {
                let (_, path) = self.file(call.arg(0)?)?;
                let (at, len) = (call.number(2)?, call.number(3)?);
                let range = at..at.checked_add(len)?;
                let what = match call.arg(1)? {
                    mode if mode.contains("PUNCH_HOLE") => What::Punch(path.clone(), range),
                    "0" => What::Allocate(path.clone(), range),
                    _ => return None,
                };
                self.before.changed(&path, true);
                self.tell(what);
            }
            _ => return Some(false),
        }
        Some(true)
    }

    /// Tells of syncs.
    fn syncs(&mut self, call: &Succeeded<'_>) -> Option<bool> {
        match call.name {
            "fsync" | "fdatasync" => {
                let (_, path) = self.file(call.arg(0)?)?;
                self.tell(match call.name {
                    "fsync" => What::Fsync(path),
                    _ => What::Fdatasync(path),
                });
            }
            "sync" => self.tell(What::Sync),
            "syncfs" => {
                self.file(call.arg(0)?)?;
                self.tell(What::Sync);
            }
            _ => return Some(false),
        }
        Some(true)
    }

    /// Tells of directories made and removed, and of names removed.
    fn names(&mut self, call: &Succeeded<'_>) -> Option<bool> {
        match call.name {
            "mkdir" | "mkdirat" => {
                let path = self.at(call.pid, call.name, &call.words.args)?;
                self.before.settled(&path, true);
                self.before.made.insert(path.clone());
                self.tell(What::Mkdir(path));
            }
            "rmdir" => {
                let path = self.path(call.pid, None, call.arg(0)?)?;
                self.removed_dir(path);
            }
            "unlink" | "unlinkat" => {
                let path = self.at(call.pid, call.name, &call.words.args)?;
                if call
                    .arg(2)
                    .is_some_and(|flags| flags.contains("AT_REMOVEDIR"))
                {
                    self.removed_dir(path);
                } else {
                    self.before.changed(&path, false);
                    self.tell(What::Unlink(path));
                }
            }
            _ => return Some(false),
        }
        Some(true)
    }

    /// Tells of names moved and added.
    fn moves(&mut self, call: &Succeeded<'_>) -> Option<bool> {
        match call.name {
            "rename" | "link" => {
                let from = self.path(call.pid, None, call.arg(0)?)?;
                let to = self.path(call.pid, None, call.arg(1)?)?;
                self.renamed(call.name, from, to);
            }
            "renameat" | "renameat2" | "linkat" => {
                let from = self.path(call.pid, call.arg(0), call.arg(1)?)?;
                let to = self.path(call.pid, call.arg(2), call.arg(3)?)?;
                self.renamed(call.name, from, to);
            }
            "symlink" | "symlinkat" => {
                let target = string(call.arg(0)?)?;
                let path = match call.name {
                    "symlink" => self.path(call.pid, None, call.arg(1)?)?,
                    _ => self.path(call.pid, call.arg(1), call.arg(2)?)?,
                };
                self.before.settled(&path, true);
                let target = String::from_utf8_lossy(&target).into_owned();
                self.tell(What::Symlink(target, path));
            }
            _ => return Some(false),
        }
        Some(true)
    }

    /// Tells of attributes and lists that were read.
    fn looks(&mut self, call: &Succeeded<'_>) -> Option<bool> {
        match call.name {
            "stat" | "lstat" | "access" => {
                let path = self.path(call.pid, None, call.arg(0)?)?;
                self.looked(path, text_of(&call.words));
            }
            "fstat" => {
                let (_, path) = self.file(call.arg(0)?)?;
                self.looked(path, text_of(&call.words));
            }
            "newfstatat" | "statx" | "faccessat" | "faccessat2" => {
                let path = self.path(call.pid, call.arg(0), call.arg(1)?)?;
                self.looked(path, text_of(&call.words));
            }
            "getdents64" | "getdents" if call.done() > 0 => {
                let (_, path) = self.file(call.arg(0)?)?;
                self.before.dir(&path);
                self.tell(What::List(path));
            }
            _ => return Some(false),
        }
        Some(true)
    }

    /// Returns the path of a call that also has a form with a directory.
    fn at(&self, pid: &str, name: &str, args: &[&str]) -> Option<String> {
        if name.ends_with("at") {
            self.path(pid, args.first().copied(), args.get(1)?)
        } else {
            self.path(pid, None, args.first()?)
        }
    }

    fn opened(&mut self, path: String, flags: &str, words: &Words<'_>) {
        if flags.contains("O_DIRECTORY") || flags.contains("O_PATH") {
            self.before.dir(&path);
            return;
        }
        let Ok(number) = u32::try_from(words.result) else {
            return;
        };
        let end = (!flags.contains("O_APPEND")).then_some(0);
        self.places.insert((number, path.clone()), end);
        if flags.contains("O_CREAT") && !self.before.has(&path) {
            // The file may have been there: only O_EXCL tells, or a size later. Most programs make
            // a new one.
            self.before.settled(&path, true);
            self.tell(What::Create(path));
        } else if flags.contains("O_TRUNC") {
            self.resize(path, 0);
        }
    }

    fn resize(&mut self, path: String, bytes: u64) {
        self.before.changed(&path, true);
        self.tell(What::Truncate(path, bytes));
    }

    fn removed_dir(&mut self, path: String) {
        self.before.dir(&path);
        self.before.settled(&path, false);
        self.before.made.remove(&path);
        self.tell(What::Rmdir(path));
    }

    fn renamed(&mut self, name: &str, from: String, to: String) {
        let is_dir = self.before.is_dir(&from);
        // A name that was not seen before may be a directory.
        let may_be_dir = is_dir || !self.before.has(&from);
        if name.starts_with("rename") {
            // What had the new name is gone.
            let replaced = self.before.first_name(&to);
            self.before.unclear.remove(&replaced);
        }
        if !is_dir {
            if may_be_dir && name.starts_with("rename") {
                self.before.unclear(&from);
            } else {
                self.before.file(&from, 0);
            }
        }
        self.before.settled(&from, !name.starts_with("rename"));
        self.before.settled(&to, true);
        if name.starts_with("rename") {
            self.before.made.remove(&to);
            if may_be_dir {
                self.before.made.insert(to.clone());
                self.before.renamed.push((from.clone(), to.clone()));
            }
            // strace prints a descriptor with the path that its file has by then.
            let open = std::mem::take(&mut self.places).into_iter();
            self.places = open
                .map(|((number, path), place)| {
                    let path = renamed(&path, &from, &to).unwrap_or(path);
                    ((number, path), place)
                })
                .collect();
        }
        self.tell(if name.starts_with("rename") {
            What::Rename(from, to)
        } else {
            What::Link(from, to)
        });
    }

    /// Notes a call that reads attributes; `st_size` is the size.
    fn looked(&mut self, path: String, text: &str) {
        if text.contains("S_IFDIR") || path.is_empty() {
            self.before.dir(&path);
        } else if text.contains("S_IFREG") {
            let size = text.split_once("st_size=").or(text.split_once("stx_size="));
            let digits = size.map_or("", |(_, size)| size);
            let digits = digits.split(|c: char| !c.is_ascii_digit()).next();
            self.before
                .file(&path, digits.and_then(|d| d.parse().ok()).unwrap_or(0));
        } else if !self.before.has(&path) && !self.before.dirs.contains(&path) {
            return;
        }
        self.tell(What::Stat(path));
    }

    /// Notes bytes that were read or written; the string has the written bytes.
    fn transfer(&mut self, file: &str, at: Option<u64>, len: u64, written: Option<&str>) {
        let Some(file) = self.file(file) else {
            return;
        };
        // A descriptor that was open before the trace began stands at the beginning.
        let place = *self.places.entry(file.clone()).or_insert(Some(0));
        let (path, is_at) = (file.1.clone(), at.or(place));
        if len == 0 {
            return;
        }
        if at.is_none()
            && let Some(Some(place)) = self.places.get_mut(&file)
        {
            *place += len;
        }
        match written {
            None => {
                let at = is_at.unwrap_or(0);
                self.before.file(&path, at + len);
                self.tell(What::Read(path, Place::At(at), len));
            }
            Some(text) => {
                self.before.changed(&path, true);
                let given = string(text).filter(|bytes| bytes.len() as u64 >= len);
                let bytes = match given {
                    Some(mut bytes) => {
                        bytes.truncate(len as usize);
                        Bytes::Given(bytes)
                    }
                    None => Bytes::Random(len),
                };
                let place = is_at.map_or(Place::End, Place::At);
                self.tell(What::Write(path, place, bytes));
            }
        }
    }
}

/// Returns the argument that has the attributes.
fn text_of<'t>(words: &Words<'t>) -> &'t str {
    let told = words.args.iter().find(|arg| arg.starts_with('{'));
    told.copied().unwrap_or("")
}

/// `3</dir/file>`, or `AT_FDCWD</dir>`, which has no number.
fn descriptor(arg: &str) -> Option<(Option<u32>, &str)> {
    let (number, path) = arg.strip_suffix('>')?.split_once('<')?;
    match number {
        "AT_FDCWD" => Some((None, path)),
        number => Some((Some(number.parse().ok()?), path)),
    }
}

/// `name(arguments) = result`, with all that is in brackets or quotes kept together.
fn words(text: &str) -> Option<(&str, Words<'_>)> {
    let (name, rest) = text.split_once('(')?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(is_name) {
        return None;
    }
    let (mut depth, mut quoted, mut escaped, mut begin) = (0, false, false, 0);
    let mut args = Vec::new();
    let mut end = None;
    for (n, c) in rest.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            '"' => quoted = !quoted,
            _ if quoted => {}
            '(' | '[' | '{' => depth += 1,
            '<' if rest[..n].ends_with(|c: char| c.is_ascii_digit() || c == 'D') => depth += 1,
            '>' if depth > 0 && !rest[..n].ends_with(['-', '=']) => depth -= 1,
            ')' if depth == 0 => {
                args.push(rest[begin..n].trim());
                end = Some(n + 1);
                break;
            }
            ')' | ']' | '}' => depth -= 1,
            ',' if depth == 0 => {
                args.push(rest[begin..n].trim());
                begin = n + 1;
            }
            _ => {}
        }
    }
    let result = rest[end?..].trim_start().strip_prefix('=')?.trim();
    let word = result.split(' ').next()?;
    let (number, opened) = match word.split_once('<') {
        Some((number, _)) => (number, descriptor(word).map(|(_, path)| path)),
        None => (word, None),
    };
    let result = number.parse().ok()?;
    Some((
        name,
        Words {
            args,
            result,
            opened,
        },
    ))
}

/// A string as C writes it, as far as it is there.
fn string(arg: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut chars = arg.strip_prefix('"')?.bytes().peekable();
    loop {
        match chars.next()? {
            b'"' => return Some(bytes),
            b'\\' => {
                let byte = match chars.next()? {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'r' => b'\r',
                    b'v' => 0x0b,
                    b'f' => 0x0c,
                    b'x' => {
                        let digits = [chars.next()?, chars.next()?];
                        u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                    }
                    digit @ b'0'..=b'7' => {
                        let mut value = u32::from(digit - b'0');
                        for _ in 0..2 {
                            let next = chars.peek().copied();
                            let Some(next) = next.filter(|c| (b'0'..=b'7').contains(c)) else {
                                break;
                            };
                            value = value * 8 + u32::from(next - b'0');
                            chars.next();
                        }
                        value.try_into().ok()?
                    }
                    other => other,
                };
                bytes.push(byte);
            }
            byte => bytes.push(byte),
        }
    }
}
