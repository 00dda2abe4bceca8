//! The words of a line: each kind can be read from it and written to it.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, Result, anyhow, bail, ensure};

use crate::world::acl::Acl;
use crate::world::op::{ClockHow, Payload, SLOTS, Special};

/// The slot for operations with a path where a slot could stand.
pub const SCRATCH_SLOT: u8 = SLOTS - 1;

/// One or more words that express a `T`.
pub(super) trait Kind<T> {
    /// Reads it from a line.
    fn read(&self, words: &mut Words<'_>) -> Result<T>;

    /// Writes it to a line, after a space.
    fn write(&self, value: &T, f: &mut fmt::Formatter<'_>) -> fmt::Result;
}

/// A path.
pub(super) struct Path;
/// Any text; the field is its name in errors.
pub(super) struct Text(pub(super) &'static str);
/// A slot.
pub(super) struct Slot;
/// A slot, or a path that is opened in [`SCRATCH_SLOT`].
pub(super) struct File;
/// A number; the field is its name in errors.
pub(super) struct Number(pub(super) &'static str);
/// Permissions; the field is the default.
pub(super) struct Mode(pub(super) Option<u16>);
/// A length and a seed; the default seed is 1.
pub(super) struct Bytes;
/// A user's or group's number; `-`: none.
pub(super) struct Id;
/// Seconds and nanoseconds.
pub(super) struct Time;
/// An access control list.
pub(super) struct AclWord;
/// The course of the clock.
pub(super) struct ClockWord;
/// A device's major and minor number.
pub(super) struct Device(pub(super) fn(u32, u32) -> Special);
/// An optional word; true if it is there.
pub(super) struct Flag(pub(super) &'static str);
/// One of these words; without a word, the value of the first.
pub(super) struct Optional<T: 'static>(pub(super) &'static [(&'static str, T)]);
/// One of these words.
pub(super) struct OneOf<T: 'static>(pub(super) &'static [(&'static str, T)]);
/// No word: always this value.
pub(super) struct Is<T>(pub(super) T);

impl Kind<String> for Path {
    fn read(&self, words: &mut Words<'_>) -> Result<String> {
        let word = words.next("the path")?;
        ensure!(!word.starts_with('@'), "{word} is a slot, not a path");
        read_word(word)
    }

    fn write(&self, value: &String, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {}", Word(value))
    }
}

impl Kind<String> for Text {
    fn read(&self, words: &mut Words<'_>) -> Result<String> {
        read_word(words.next(self.0)?)
    }

    fn write(&self, value: &String, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {}", Word(value))
    }
}

impl Kind<u8> for Slot {
    fn read(&self, words: &mut Words<'_>) -> Result<u8> {
        let word = words.next("the slot")?;
        slot_of(word)?.with_context(|| format!("\"{word}\" is no slot such as @0"))
    }

    fn write(&self, value: &u8, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " @{value}")
    }
}

impl Kind<u8> for File {
    fn read(&self, words: &mut Words<'_>) -> Result<u8> {
        let word = words.next("the file")?;
        if let Some(slot) = slot_of(word)? {
            return Ok(slot);
        }
        words.opened = Some(read_word(word)?);
        Ok(SCRATCH_SLOT)
    }

    fn write(&self, value: &u8, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Slot.write(value, f)
    }
}

impl<T: FromStr + fmt::Display> Kind<T> for Number {
    fn read(&self, words: &mut Words<'_>) -> Result<T> {
        let word = words.next(self.0)?;
        let number = word.parse();
        number.map_err(|_| anyhow!("{} cannot be \"{word}\"", self.0))
    }

    fn write(&self, value: &T, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {value}")
    }
}

impl Kind<u16> for Mode {
    fn read(&self, words: &mut Words<'_>) -> Result<u16> {
        if let (Some(default), false) = (self.0, words.at_number()) {
            return Ok(default);
        }
        let word = words.next("the mode")?;
        let mode = u16::from_str_radix(word, 8).ok().filter(|m| *m <= 0o7777);
        mode.with_context(|| format!("the mode cannot be \"{word}\": octal, at most 7777"))
    }

    fn write(&self, value: &u16, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {value:o}")
    }
}

impl Kind<Payload> for Bytes {
    fn read(&self, words: &mut Words<'_>) -> Result<Payload> {
        let len = Number("the length").read(words)?;
        let seed = if words.at_number() {
            Number("the seed").read(words)?
        } else {
            1
        };
        Ok(Payload { seed, len })
    }

    fn write(&self, Payload { seed, len }: &Payload, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {len} {seed}")
    }
}

impl Kind<Option<u32>> for Id {
    fn read(&self, words: &mut Words<'_>) -> Result<Option<u32>> {
        if words.takes("-") {
            return Ok(None);
        }
        Number("the id").read(words).map(Some)
    }

    fn write(&self, value: &Option<u32>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match value {
            Some(id) => write!(f, " {id}"),
            None => f.write_str(" -"),
        }
    }
}

impl Kind<(i64, u32)> for Time {
    fn read(&self, words: &mut Words<'_>) -> Result<(i64, u32)> {
        let word = words.next("the time")?;
        let wrong = || anyhow!("the time cannot be \"{word}\": seconds.nanoseconds");
        let (sec, nsec) = word.split_once('.').unwrap_or((word, "0"));
        let nsec = format!("{nsec:0<9}");
        let nsec: u32 = nsec.parse().map_err(|_| wrong())?;
        ensure!(nsec < 1_000_000_000, wrong());
        Ok((sec.parse().map_err(|_| wrong())?, nsec))
    }

    fn write(&self, (sec, nsec): &(i64, u32), f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, " {sec}.{nsec:09}")
    }
}

impl Kind<ClockHow> for ClockWord {
    fn read(&self, words: &mut Words<'_>) -> Result<ClockHow> {
        if words.takes("runs") {
            return Ok(ClockHow::Runs);
        }
        if words.takes("still") {
            return Ok(ClockHow::Still);
        }
        let (sec, nsec) = Time.read(words)?;
        Ok(ClockHow::At(sec, nsec))
    }

    fn write(&self, value: &ClockHow, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *value {
            ClockHow::Runs => f.write_str(" runs"),
            ClockHow::Still => f.write_str(" still"),
            ClockHow::At(sec, nsec) => Time.write(&(sec, nsec), f),
        }
    }
}

impl Kind<Special> for Device {
    fn read(&self, words: &mut Words<'_>) -> Result<Special> {
        let major = Number("the major number").read(words)?;
        Ok(self.0(major, Number("the minor number").read(words)?))
    }

    fn write(&self, value: &Special, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (major, minor) = value.device();
        write!(f, " {major} {minor}")
    }
}

impl Kind<Option<Acl>> for AclWord {
    fn read(&self, words: &mut Words<'_>) -> Result<Option<Acl>> {
        match words.next("the ACL")? {
            "none" => Ok(None),
            acl => read_acl(acl).map(Some),
        }
    }

    fn write(&self, value: &Option<Acl>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match value {
            Some(acl) => write!(f, " {}", show_acl(acl)),
            None => f.write_str(" none"),
        }
    }
}

impl Kind<bool> for Flag {
    fn read(&self, words: &mut Words<'_>) -> Result<bool> {
        Ok(words.takes(self.0))
    }

    fn write(&self, value: &bool, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *value {
            write!(f, " {}", self.0)?;
        }
        Ok(())
    }
}

impl<T: Copy + PartialEq> Kind<T> for Optional<T> {
    fn read(&self, words: &mut Words<'_>) -> Result<T> {
        let named = self.0[1..].iter().find(|(word, _)| words.takes(word));
        Ok(named.unwrap_or(&self.0[0]).1)
    }

    fn write(&self, value: &T, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0[1..].iter().find(|(_, of)| of == value) {
            Some((word, _)) => write!(f, " {word}"),
            None => Ok(()),
        }
    }
}

impl<T: Copy + PartialEq> Kind<T> for OneOf<T> {
    fn read(&self, words: &mut Words<'_>) -> Result<T> {
        let all: Vec<_> = self.0.iter().map(|(word, _)| *word).collect();
        let given = words.next(&all.join(" or "))?;
        match self.0.iter().find(|(word, _)| *word == given) {
            Some((_, value)) => Ok(*value),
            None => bail!("\"{given}\" is neither {}", all.join(" nor ")),
        }
    }

    fn write(&self, value: &T, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.iter().find(|(_, of)| of == value) {
            Some((word, _)) => write!(f, " {word}"),
            None => Err(fmt::Error),
        }
    }
}

impl<T: Copy> Kind<T> for Is<T> {
    fn read(&self, _: &mut Words<'_>) -> Result<T> {
        Ok(self.0)
    }

    fn write(&self, _: &T, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

/// Takes the words of a line one after the other.
pub(super) struct Words<'a> {
    words: std::iter::Peekable<std::str::SplitWhitespace<'a>>,
    /// The path that stood where a slot could.
    opened: Option<String>,
}

impl<'a> Words<'a> {
    pub(super) fn new(line: &'a str) -> Self {
        Self {
            words: line.split_whitespace().peekable(),
            opened: None,
        }
    }

    /// Returns the next word; `what` is its name in the error if it is missing.
    pub(super) fn next(&mut self, what: &str) -> Result<&'a str> {
        let next = self.any();
        next.with_context(|| format!("{what} is missing"))
    }

    /// Returns the next word, if there is one.
    pub(super) fn any(&mut self) -> Option<&'a str> {
        self.words.next()
    }

    /// Takes the next word if it equals `word`.
    fn takes(&mut self, word: &str) -> bool {
        self.words.next_if_eq(&word).is_some()
    }

    fn at_number(&mut self) -> bool {
        let next = self.words.peek();
        next.is_some_and(|word| word.starts_with(|c: char| c.is_ascii_digit()))
    }

    /// Whether the next word is a slot.
    pub(super) fn at_slot(&mut self) -> bool {
        self.words.peek().is_some_and(|word| word.starts_with('@'))
    }

    /// Takes the path that [`File`] has found.
    pub(super) fn opened(&mut self) -> Option<String> {
        self.opened.take()
    }
}

/// Whether a byte of a word stands for itself.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"/._-+=,:~^".contains(&byte)
}

/// Formats a word with its escapes.
struct Word<'a>(&'a str);

impl fmt::Display for Word<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.bytes() {
            if is_plain(byte) {
                write!(f, "{}", char::from(byte))?;
            } else {
                write!(f, "%{byte:02x}")?;
            }
        }
        Ok(())
    }
}

/// Decodes the escapes of a word.
fn read_word(word: &str) -> Result<String> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = rest.get(..2).and_then(|d| std::str::from_utf8(d).ok());
        let byte = digits.and_then(|d| u8::from_str_radix(d, 16).ok());
        bytes.push(byte.with_context(|| format!("\"{word}\": % and two hexadecimal digits"))?);
        rest = &rest[2..];
    }
    String::from_utf8(bytes).with_context(|| format!("\"{word}\" is no text"))
}

fn show_acl(acl: &Acl) -> String {
    let mut parts = vec![
        format!("u={}", acl.owner),
        format!("g={}", acl.group),
        format!("o={}", acl.other),
    ];
    parts.extend(acl.users.iter().map(|(id, perm)| format!("u{id}={perm}")));
    parts.extend(acl.groups.iter().map(|(id, perm)| format!("g{id}={perm}")));
    parts.extend(acl.mask.map(|mask| format!("m={mask}")));
    parts.join(",")
}

fn read_acl(text: &str) -> Result<Acl> {
    let mut acl = Acl {
        owner: 0,
        users: Vec::new(),
        group: 0,
        groups: Vec::new(),
        mask: None,
        other: 0,
    };
    for part in text.split(',') {
        let wrong = || anyhow!("\"{part}\" is no entry of an ACL such as u=7, u1000=6 or m=5");
        let (who, perm) = part.split_once('=').ok_or_else(wrong)?;
        let perm: u8 = perm.parse().ok().filter(|p| *p < 8).ok_or_else(wrong)?;
        match who {
            "u" => acl.owner = perm,
            "g" => acl.group = perm,
            "o" => acl.other = perm,
            "m" => acl.mask = Some(perm),
            _ => {
                let list = match who.as_bytes().first() {
                    Some(b'u') => &mut acl.users,
                    Some(b'g') => &mut acl.groups,
                    _ => bail!(wrong()),
                };
                list.push((who[1..].parse().map_err(|_| wrong())?, perm));
            }
        }
    }
    acl.users.sort_unstable();
    acl.groups.sort_unstable();
    Ok(acl)
}

/// Returns the slot that a word names; `None` if it is not a slot.
fn slot_of(word: &str) -> Result<Option<u8>> {
    let Some(number) = word.strip_prefix('@') else {
        return Ok(None);
    };
    let slot = number.parse().ok().filter(|slot| *slot < SLOTS);
    let last = SLOTS - 1;
    let slot = slot.with_context(|| format!("\"{word}\" is no slot: @0 to @{last}"))?;
    Ok(Some(slot))
}
