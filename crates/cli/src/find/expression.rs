//! The expressions of find(1): tests, actions, and how they are joined.

use std::time::{SystemTime, UNIX_EPOCH};

use super::glob;
use crate::failure::{Explain, Failure, Result};
use crate::image::Volume;
use crate::place::Place;
use crate::tree::{FileKind, Item, Meta, Stamp, Tree};

/// A file, as tests see it.
pub(super) struct File<'a> {
    pub(super) item: &'a dyn Item,
    pub(super) meta: &'a Meta,
    /// The last part of its path.
    pub(super) name: &'a [u8],
    /// The path as it is printed.
    pub(super) path: &'a [u8],
}

/// What is done with a file that fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Print,
    Print0,
    List,
}

/// A number, or more or less than it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Amount {
    Less(u64),
    Exactly(u64),
    More(u64),
}

impl Amount {
    fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| text.parse().ok();
        match text.as_bytes().first()? {
            b'+' => number(&text[1..]).map(Self::More),
            b'-' => number(&text[1..]).map(Self::Less),
            _ => number(text).map(Self::Exactly),
        }
    }

    fn holds(self, value: u64) -> bool {
        match self {
            Self::Less(n) => value < n,
            Self::Exactly(n) => value == n,
            Self::More(n) => value > n,
        }
    }
}

/// Which permissions a file must have.
#[derive(Clone, Copy, Debug)]
enum Wanted {
    Exactly(u16),
    All(u16),
    Any(u16),
}

/// Which of the owners.
#[derive(Clone, Copy, Debug)]
enum Who {
    User,
    Group,
}

#[derive(Debug)]
enum Node {
    Constant(bool),
    Name(Vec<u8>, bool),
    Path(Vec<u8>, bool),
    Type(Vec<char>),
    Size(Amount, u64),
    Empty,
    Perm(Wanted),
    Uid(Amount),
    Gid(Amount),
    Links(Amount),
    Inode(Amount),
    /// A user or a group by its name.
    Named(Who, Vec<u8>),
    /// Units of so many seconds since the last change, or since the last read.
    Age {
        of_read: bool,
        unit: u64,
        amount: Amount,
    },
    /// Changed later than the file at a place.
    Newer(Vec<u8>),
    NewerThan(Stamp),
    Xattr(Vec<u8>),
    Prune,
    Do(Action),
    Not(Box<Node>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
}

/// A parsed expression.
pub(super) struct Expression {
    node: Node,
    has_action: bool,
    pub(super) min_depth: usize,
    pub(super) max_depth: usize,
    pub(super) depth_first: bool,
    /// Seconds since 1970 when the command began.
    now: i64,
}

/// The result of an expression for one file.
#[derive(Default)]
pub(super) struct Outcome {
    pub(super) actions: Vec<Action>,
    pub(super) prunes: bool,
}

impl Expression {
    /// Parses the words of an expression; fails with what is wrong.
    pub(super) fn parse(words: &[Vec<u8>]) -> Result<Self, String> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let mut expression = Self {
            node: Node::Constant(true),
            has_action: false,
            min_depth: 0,
            max_depth: usize::MAX,
            depth_first: false,
            now: now.map_or(0, |since| {
                i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
            }),
        };
        let mut parser = Parser {
            words,
            at: 0,
            expression: &mut expression,
        };
        if !words.is_empty() {
            let node = parser.either(0)?;
            if let Some(word) = parser.peek() {
                return Err(format!("{} is not expected here", shown_word(word)));
            }
            expression.node = node;
        }
        if !expression.has_action {
            let node = std::mem::replace(&mut expression.node, Node::Constant(true));
            expression.node = Node::And(Box::new(node), Box::new(Node::Do(Action::Print)));
        }
        Ok(expression)
    }

    /// Returns whether the expression says what to do.
    pub(super) fn has_action(&self) -> bool {
        self.has_action
    }

    /// Looks up the owners and the files that the expression names.
    pub(super) fn resolve(&mut self, volume: &Volume) -> Result<()> {
        self.node.resolve(volume)
    }

    /// Tries the expression on a file.
    pub(super) fn judge(&self, file: &File<'_>) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        self.node.holds(file, self.now, &mut outcome)?;
        Ok(outcome)
    }
}

fn shown_word(word: &[u8]) -> String {
    format!("\"{}\"", String::from_utf8_lossy(word))
}

struct Parser<'a> {
    words: &'a [Vec<u8>],
    at: usize,
    expression: &'a mut Expression,
}

/// How deep parentheses may be nested.
const NESTED_MAX: usize = 100;

impl Parser<'_> {
    fn peek(&self) -> Option<&[u8]> {
        self.words.get(self.at).map(Vec::as_slice)
    }

    fn is_next(&self, any: &[&[u8]]) -> bool {
        self.peek().is_some_and(|word| any.contains(&word))
    }

    /// Takes the argument of a test.
    fn argument(&mut self, of: &str) -> Result<Vec<u8>, String> {
        let word = self.words.get(self.at).cloned();
        self.at += 1;
        word.ok_or_else(|| format!("{of} needs an argument"))
    }

    fn text(&mut self, of: &str) -> Result<String, String> {
        let word = self.argument(of)?;
        String::from_utf8(word).map_err(|e| format!("{of} {}", shown_word(e.as_bytes())))
    }

    fn amount(&mut self, of: &str) -> Result<Amount, String> {
        let text = self.text(of)?;
        Amount::parse(&text).ok_or_else(|| format!("{of} {text}: a number is missing"))
    }

    /// E -o E
    fn either(&mut self, depth: usize) -> Result<Node, String> {
        let mut node = self.both(depth)?;
        while self.is_next(&[b"-o", b"-or"]) {
            self.at += 1;
            node = Node::Or(Box::new(node), Box::new(self.both(depth)?));
        }
        Ok(node)
    }

    /// E E, E -a E
    fn both(&mut self, depth: usize) -> Result<Node, String> {
        let mut node = self.one(depth)?;
        loop {
            if self.is_next(&[b"-a", b"-and"]) {
                self.at += 1;
            } else if self.peek().is_none() || self.is_next(&[b"-o", b"-or", b")"]) {
                return Ok(node);
            }
            node = Node::And(Box::new(node), Box::new(self.one(depth)?));
        }
    }

    /// ! E, ( E ), or a test
    fn one(&mut self, depth: usize) -> Result<Node, String> {
        if depth > NESTED_MAX {
            return Err("too many parentheses".to_owned());
        }
        let word = self.argument("an operator")?;
        match &word[..] {
            b"!" | b"-not" => Ok(Node::Not(Box::new(self.one(depth + 1)?))),
            b"(" => {
                let node = self.either(depth + 1)?;
                if !self.is_next(&[b")"]) {
                    return Err("a ) is missing".to_owned());
                }
                self.at += 1;
                Ok(node)
            }
            word => match std::str::from_utf8(word) {
                Ok(word) => self.test(word),
                Err(_) => Err(format!("{} is no expression", shown_word(word))),
            },
        }
    }

    fn test(&mut self, word: &str) -> Result<Node, String> {
        let act = |expression: &mut Expression, action| {
            expression.has_action = true;
            Node::Do(action)
        };
        let age = |of_read, unit, amount| Node::Age {
            of_read,
            unit,
            amount,
        };
        const MINUTE: u64 = 60;
        const DAY: u64 = 24 * 60 * MINUTE;
        Ok(match word {
            "-true" => Node::Constant(true),
            "-false" => Node::Constant(false),
            "-name" => Node::Name(self.argument(word)?, false),
            "-iname" => Node::Name(self.argument(word)?, true),
            "-path" | "-wholename" => Node::Path(self.argument(word)?, false),
            "-ipath" | "-iwholename" => Node::Path(self.argument(word)?, true),
            "-type" => Node::Type(self.types()?),
            "-size" => self.size()?,
            "-empty" => Node::Empty,
            "-perm" => Node::Perm(self.permissions()?),
            "-uid" => Node::Uid(self.amount(word)?),
            "-gid" => Node::Gid(self.amount(word)?),
            "-links" => Node::Links(self.amount(word)?),
            "-inum" => Node::Inode(self.amount(word)?),
            "-user" => Node::Named(Who::User, self.argument(word)?),
            "-group" => Node::Named(Who::Group, self.argument(word)?),
            "-mtime" => age(false, DAY, self.amount(word)?),
            "-atime" => age(true, DAY, self.amount(word)?),
            "-mmin" => age(false, MINUTE, self.amount(word)?),
            "-amin" => age(true, MINUTE, self.amount(word)?),
            "-newer" => Node::Newer(self.argument(word)?),
            "-xattr" => Node::Xattr(self.argument(word)?),
            "-prune" => Node::Prune,
            "-print" => act(self.expression, Action::Print),
            "-print0" => act(self.expression, Action::Print0),
            "-ls" => act(self.expression, Action::List),
            "-depth" => {
                self.expression.depth_first = true;
                Node::Constant(true)
            }
            "-maxdepth" | "-mindepth" => {
                let text = self.text(word)?;
                let depth = text
                    .parse()
                    .map_err(|_| format!("{word} {text}: a number is missing"))?;
                match word {
                    "-maxdepth" => self.expression.max_depth = depth,
                    _ => self.expression.min_depth = depth,
                }
                Node::Constant(true)
            }
            word => return Err(format!("{word} is not known")),
        })
    }

    fn types(&mut self) -> Result<Vec<char>, String> {
        let text = self.text("-type")?;
        let mut letters = Vec::new();
        for word in text.split(',') {
            match word {
                // `ls -l` shows a file as -.
                "f" => letters.push('-'),
                "d" | "l" | "p" | "s" | "c" | "b" => letters.extend(word.chars()),
                _ => return Err(format!("-type {text}: the letters are f, d, l, p, s, c, b")),
            }
        }
        Ok(letters)
    }

    fn size(&mut self) -> Result<Node, String> {
        let text = self.text("-size")?;
        let unit = match text.chars().last() {
            Some('c') => 1,
            Some('w') => 2,
            Some('b' | '0'..='9') => 512,
            Some('k') => 1 << 10,
            Some('M') => 1 << 20,
            Some('G') => 1 << 30,
            _ => return Err(format!("-size {text}: the units are c, w, b, k, M, G")),
        };
        let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
        let amount = Amount::parse(number);
        let amount = amount.ok_or_else(|| format!("-size {text}: a number is missing"))?;
        Ok(Node::Size(amount, unit))
    }

    fn permissions(&mut self) -> Result<Wanted, String> {
        let text = self.text("-perm")?;
        let digits = text.trim_start_matches(['-', '/']);
        let mode = u16::from_str_radix(digits, 8)
            .ok()
            .filter(|mode| *mode <= 0o7777);
        let mode =
            mode.ok_or_else(|| format!("-perm {text}: it takes octal numbers, such as 644"))?;
        Ok(match text.as_bytes().first() {
            Some(b'-') => Wanted::All(mode),
            // As find: no bits at all are always there.
            Some(b'/') if mode == 0 => Wanted::All(0),
            Some(b'/') => Wanted::Any(mode),
            _ => Wanted::Exactly(mode),
        })
    }
}

impl Node {
    fn resolve(&mut self, volume: &Volume) -> Result<()> {
        match self {
            Self::Not(node) => node.resolve(volume)?,
            Self::And(a, b) | Self::Or(a, b) => {
                a.resolve(volume)?;
                b.resolve(volume)?;
            }
            Self::Named(who, name) => {
                let id = Amount::Exactly(owner(volume, *who, name)?.into());
                *self = match who {
                    Who::User => Self::Uid(id),
                    Who::Group => Self::Gid(id),
                };
            }
            Self::Newer(place) => *self = Self::NewerThan(changed(volume, place)?),
            _ => {}
        }
        Ok(())
    }

    fn holds(&self, file: &File<'_>, now: i64, outcome: &mut Outcome) -> Result<bool> {
        let meta = file.meta;
        Ok(match self {
            Self::Constant(value) => *value,
            Self::Name(pattern, any_case) => glob::matches(pattern, file.name, *any_case),
            Self::Path(pattern, any_case) => glob::matches(pattern, file.path, *any_case),
            Self::Type(letters) => letters.contains(&meta.kind.letter()),
            Self::Size(amount, unit) => amount.holds(meta.size.div_ceil(*unit)),
            Self::Empty => match meta.kind {
                FileKind::File => meta.size == 0,
                FileKind::Dir => file.item.names()?.is_empty(),
                _ => false,
            },
            Self::Perm(Wanted::Exactly(mode)) => meta.mode == *mode,
            Self::Perm(Wanted::All(mode)) => meta.mode & mode == *mode,
            Self::Perm(Wanted::Any(mode)) => meta.mode & mode != 0,
            Self::Uid(amount) => amount.holds(meta.uid.into()),
            Self::Gid(amount) => amount.holds(meta.gid.into()),
            Self::Links(amount) => amount.holds(meta.nlink),
            Self::Inode(amount) => amount.holds(meta.id.1),
            Self::Age {
                of_read,
                unit,
                amount,
            } => {
                let time = if *of_read { meta.atime } else { meta.mtime };
                is_of_age(i128::from(now) - in_ns(time), *unit, *amount)
            }
            Self::NewerThan(time) => meta.mtime > *time,
            Self::Xattr(wanted) => file.item.xattrs()?.iter().any(|(name, _)| name == wanted),
            Self::Prune => {
                outcome.prunes = true;
                true
            }
            Self::Do(action) => {
                outcome.actions.push(*action);
                true
            }
            Self::Not(node) => !node.holds(file, now, outcome)?,
            Self::And(a, b) => a.holds(file, now, outcome)? && b.holds(file, now, outcome)?,
            Self::Or(a, b) => a.holds(file, now, outcome)? || b.holds(file, now, outcome)?,
            Self::Named(..) | Self::Newer(_) => false,
        })
    }
}

fn in_ns((sec, nsec): Stamp) -> i128 {
    i128::from(sec) * 1_000_000_000 + i128::from(nsec)
}

/// Returns whether an age in nanoseconds fits. As find: of days, fractions do not count; a number
/// of minutes means the minute that ends there.
fn is_of_age(age: i128, unit: u64, amount: Amount) -> bool {
    let unit = i128::from(unit) * 1_000_000_000;
    let whole = age.div_euclid(unit);
    let is_minute = unit == 60 * 1_000_000_000;
    match amount {
        Amount::Less(n) => age < i128::from(n) * unit,
        Amount::Exactly(n) if is_minute => (age - 1).div_euclid(unit) + 1 == i128::from(n),
        Amount::Exactly(n) => whole == i128::from(n),
        Amount::More(n) if is_minute => age > i128::from(n) * unit,
        Amount::More(n) => whole > i128::from(n),
    }
}

/// Looks a user or group up in the image's own list, `name:x:NUMBER:...`; a number stays one.
fn owner(volume: &Volume, who: Who, name: &[u8]) -> Result<u32> {
    /// Longer lists are not read.
    const LIST_MAX: usize = 16 << 20;
    let number = std::str::from_utf8(name)
        .ok()
        .and_then(|text| text.parse().ok());
    let (path, word) = match who {
        Who::User => (&b"/etc/passwd"[..], "user"),
        Who::Group => (&b"/etc/group"[..], "group"),
    };
    let mut list = Vec::new();
    if let Some(file) = volume.at(path, true)?
        && file.meta()?.kind == FileKind::File
    {
        let mut source = file.open()?;
        let mut chunk = vec![0; 1 << 16];
        while list.len() < LIST_MAX {
            match source.read(list.len().try_into().unwrap_or(u64::MAX), &mut chunk)? {
                0 => break,
                n => list.extend_from_slice(&chunk[..n]),
            }
        }
    }
    let found = list.split(|byte| *byte == b'\n').find_map(|line| {
        let mut fields = line.split(|byte| *byte == b':');
        let id = (fields.next()? == name).then(|| fields.nth(1)).flatten()?;
        std::str::from_utf8(id).ok()?.parse().ok()
    });
    found.or(number).ok_or_else(|| {
        let name = String::from_utf8_lossy(name);
        let list = volume.shown(path);
        Failure::new(format!("there is no {word} \"{name}\" in {list}")).advise("give the number")
    })
}

/// Returns when the file at a place was changed: in an image, or on this machine.
fn changed(volume: &Volume, word: &[u8]) -> Result<Stamp> {
    use std::os::unix::ffi::OsStringExt;
    use std::os::unix::fs::MetadataExt;
    let place = Place::from(std::ffi::OsString::from_vec(word.to_vec()));
    match &place {
        Place::Host(path) => {
            let meta = path.metadata().during(|| place.to_string())?;
            let nsec = u32::try_from(meta.mtime_nsec()).unwrap_or(0);
            Ok((meta.mtime(), nsec))
        }
        Place::Image { image, path } => {
            let gone = || Failure::new(format!("{place}: no such file or directory"));
            if volume.is_of(image) {
                return Ok(volume.meta(path)?.ok_or_else(gone)?.mtime);
            }
            let other = Volume::open(image, false)?;
            let meta = other.meta(path)?;
            other.close()?;
            Ok(meta.ok_or_else(gone)?.mtime)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Expression, String> {
        let words: Vec<Vec<u8>> = text
            .split_whitespace()
            .map(|w| w.as_bytes().to_vec())
            .collect();
        Expression::parse(&words)
    }

    #[test]
    fn and_binds_more_than_or() {
        let parsed = parse("-false -false -o -true -print").unwrap();
        assert!(matches!(parsed.node, Node::Or(..)), "{:?}", parsed.node);
        let parsed = parse("-false ( -false -o -true ) -print").unwrap();
        assert!(matches!(parsed.node, Node::And(..)), "{:?}", parsed.node);
    }

    #[test]
    fn what_is_wrong_is_told() {
        for (text, why) in [
            ("-name", "-name needs an argument"),
            ("( -true", "a ) is missing"),
            ("-true )", "not expected"),
            ("-frob", "-frob is not known"),
            ("-size 3x", "the units are"),
            ("-size k", "a number is missing"),
            ("-perm u+x", "octal"),
            ("-type x", "the letters are"),
            ("-true -o", "needs an argument"),
            ("!", "needs an argument"),
        ] {
            let error = parse(text).err().unwrap_or_default();
            assert!(error.contains(why), "{text}: {error}");
        }
        assert!(parse(&"( ".repeat(100_000)).is_err());
    }

    #[test]
    fn ages_are_those_of_find() {
        let day = 86_400;
        let age = |seconds: i128, unit, amount| is_of_age(seconds * 1_000_000_000, unit, amount);
        assert!(age(86_399, day, Amount::Exactly(0)));
        assert!(!age(2 * 86_400 - 1, day, Amount::More(1)));
        assert!(age(2 * 86_400, day, Amount::More(1)));
        assert!(age(60, 60, Amount::Exactly(1)) && age(1, 60, Amount::Exactly(1)));
        assert!(age(61, 60, Amount::More(1)) && age(90, 60, Amount::Less(2)));
    }
}
