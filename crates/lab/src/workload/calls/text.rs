//! Lists of calls as text: a call a line, words between blanks, `#` begins a comment.
//!
//! ```text
//! create log                  # prepared, and not measured
//! write log 0 1M
//! run
//! repeat 1000
//!   write log random 4K
//!   fdatasync log
//!   create mail/$i            # needs `mkdir mail` above `run`
//!   append mail/$i 3K
//!   fsync mail/$i
//! end
//! ```
//!
//! `$i` is the number of the innermost repetition, from 0; `repeat 10 j` calls it `$j`.
//! `$(0..99)` is a number drawn by the seed, both ends among them. Sizes take K, M and G.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use stetfs_testkit::rng::Rng;

use super::{Bytes, Call, Calls, Pace, Place, What, read_text};
use crate::text;

/// The most calls of a list: more are taken for a mistake in a number.
const MOST: usize = 10_000_000;
/// The most repetitions within each other.
const DEEPEST: usize = 16;

/// Each call with its arguments.
pub const SYNTAX: &str = "mkdir PATH | rmdir PATH | create PATH | write PATH OFFSET|random BYTES | \
    append PATH BYTES | read PATH OFFSET|random BYTES | truncate PATH BYTES | \
    allocate PATH OFFSET BYTES | punch PATH OFFSET BYTES | fsync PATH | fdatasync PATH | \
    close PATH | rename PATH PATH | link PATH PATH | symlink TARGET PATH | unlink PATH | \
    stat PATH | list PATH | sync | wait TIME | run | repeat TIMES [NAME] ... end";

/// Reads a list from a file.
///
/// # Errors
/// The file; a line that is no call.
pub fn read(path: &Path, seed: u64) -> Result<Calls> {
    let name = path.display().to_string();
    parse(&read_text(path)?, &name, seed)
}

/// Reads a list.
///
/// # Errors
/// A line that is no call.
pub fn parse(text: &str, name: &str, seed: u64) -> Result<Calls> {
    let lines: Vec<Line<'_>> = text
        .lines()
        .enumerate()
        .map(|(n, line)| {
            let line = line.split_once('#').map_or(line, |(words, _)| words);
            (n + 1, line.split_whitespace().collect())
        })
        .filter(|(_, words): &Line<'_>| !words.is_empty())
        .collect();
    let mut reader = Reader {
        name,
        rng: Rng::new(seed),
        vars: Vec::new(),
        calls: Vec::new(),
        run: None,
    };
    reader.block(&lines, 0)?;
    let Reader { mut calls, run, .. } = reader;
    let measured = calls.split_off(run.unwrap_or(0));
    ensure!(!measured.is_empty(), "{name}: no calls to be measured");
    Ok(Calls {
        name: name.to_owned(),
        before: calls,
        calls: measured,
        pace: Pace::Full,
        seed,
    })
}

/// A line's number and words.
type Line<'t> = (usize, Vec<&'t str>);

struct Reader<'t> {
    name: &'t str,
    rng: Rng,
    /// Names of the repetitions around a line with their numbers, the innermost last.
    vars: Vec<(String, u64)>,
    calls: Vec<Call>,
    /// How many calls stand before `run`.
    run: Option<usize>,
}

impl<'t> Reader<'t> {
    /// Reads lines up to the `end` of their repetition, or to the last one. Returns how many these
    /// were.
    fn block(&mut self, lines: &[Line<'t>], depth: usize) -> Result<usize> {
        let (mut at, list) = (0, self.name);
        while let Some((line, words)) = lines.get(at) {
            at += 1;
            let here = || format!("{list}, line {line}");
            match words[..] {
                ["end"] if depth > 0 => return Ok(at),
                ["end"] => bail!("{}: no repetition to end here", here()),
                ["run"] => {
                    ensure!(
                        depth == 0 && self.run.is_none(),
                        "{}: run is said once, outside of repetitions",
                        here()
                    );
                    self.run = Some(self.calls.len());
                }
                ["repeat", times, ref name @ ..] if name.len() < 2 => {
                    ensure!(
                        depth < DEEPEST,
                        "{}: repetitions nested deeper than {DEEPEST}",
                        here()
                    );
                    let times: u64 = times.parse().with_context(here)?;
                    let name = name.first().map_or("i", |name| *name).to_owned();
                    let mut taken = None;
                    for n in 0..times {
                        self.vars.push((name.clone(), n));
                        taken = Some(self.block(&lines[at..], depth + 1)?);
                        self.vars.pop();
                    }
                    at += match taken {
                        Some(taken) => taken,
                        None => skipped(&lines[at..]).with_context(here)?,
                    };
                }
                _ => {
                    let words = words.iter().map(|word| self.filled(word));
                    let words = words.collect::<Result<Vec<_>>>().with_context(here)?;
                    let what = call(&words).with_context(here)?;
                    ensure!(
                        self.calls.len() < MOST,
                        "{}: more than {MOST} calls",
                        here()
                    );
                    self.calls.push(Call {
                        line: *line,
                        at: None,
                        what,
                    });
                }
            }
        }
        ensure!(depth == 0, "{}: a repetition without an end", self.name);
        Ok(at)
    }

    /// Returns a word with numbers in place of names.
    fn filled(&mut self, word: &str) -> Result<String> {
        let mut filled = String::new();
        let mut rest = word;
        while let Some((before, after)) = rest.split_once('$') {
            filled.push_str(before);
            if let Some(range) = after.strip_prefix('(') {
                let drawn = range.split_once(')').and_then(|(range, after)| {
                    let (first, last) = range.split_once("..")?;
                    let (first, last) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
                    Some((first, last.checked_sub(first)?.checked_add(1)?, after))
                });
                let (first, many, after) = drawn
                    .with_context(|| format!("{word}: a number is drawn by $(FIRST..LAST)"))?;
                filled.push_str(&(first + self.rng.below(many)).to_string());
                rest = after;
                continue;
            }
            // The longest known name counts, so that `$ij` is not `$i` and a `j`.
            let known = self.vars.iter().rev();
            let known = known.filter(|(name, _)| after.starts_with(name.as_str()));
            let (name, number) = known
                .max_by_key(|(name, _)| name.len())
                .with_context(|| format!("{word}: there is no repetition of that name"))?;
            filled.push_str(&number.to_string());
            rest = &after[name.len()..];
        }
        filled.push_str(rest);
        Ok(filled)
    }
}

/// Returns how many lines to skip for a repetition that runs zero times.
fn skipped(lines: &[Line<'_>]) -> Result<usize> {
    let mut depth = 1;
    for (n, (_, words)) in lines.iter().enumerate() {
        match words[0] {
            "repeat" => depth += 1,
            "end" => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Ok(n + 1);
        }
    }
    bail!("a repetition without an end")
}

fn call(words: &[String]) -> Result<What> {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let path = |path: &str| path.trim_matches('/').to_owned();
    let range = |at: &str, len: &str| -> Result<_> {
        let (at, len) = (bytes(at)?, bytes(len)?);
        Ok(at..at.checked_add(len).context("beyond what a file can hold")?)
    };
    Ok(match words[..] {
        ["mkdir", dir] => What::Mkdir(path(dir)),
        ["rmdir", dir] => What::Rmdir(path(dir)),
        ["create", file] => What::Create(path(file)),
        ["write", file, at, len] => What::Write(path(file), place(at)?, Bytes::Random(bytes(len)?)),
        ["append", file, len] => What::Write(path(file), Place::End, Bytes::Random(bytes(len)?)),
        ["read", file, at, len] => What::Read(path(file), place(at)?, bytes(len)?),
        ["truncate", file, len] => What::Truncate(path(file), bytes(len)?),
        ["allocate", file, at, len] => What::Allocate(path(file), range(at, len)?),
        ["punch", file, at, len] => What::Punch(path(file), range(at, len)?),
        ["fsync", file] => What::Fsync(path(file)),
        ["fdatasync", file] => What::Fdatasync(path(file)),
        ["close", file] => What::Close(path(file)),
        ["rename", from, to] => What::Rename(path(from), path(to)),
        ["link", from, to] => What::Link(path(from), path(to)),
        ["symlink", target, name] => What::Symlink(target.to_owned(), path(name)),
        ["unlink", file] => What::Unlink(path(file)),
        ["stat", file] => What::Stat(path(file)),
        ["list", dir] => What::List(path(dir)),
        ["sync"] => What::Sync,
        ["wait", time] => What::Wait(Duration::from_nanos(value::<text::Nanos>(time)?.0)),
        _ => bail!("{:?} is none of: {SYNTAX}", words.join(" ")),
    })
}

fn place(text: &str) -> Result<Place> {
    match text {
        "random" => Ok(Place::Random),
        _ => Ok(Place::At(bytes(text)?)),
    }
}

fn bytes(text: &str) -> Result<u64> {
    Ok(value::<text::Bytes>(text)?.0)
}

fn value<T: serde::de::DeserializeOwned>(text: &str) -> Result<T> {
    Ok(serde_json::from_value(text.into())?)
}
