//! Operations as text, one per line: failures print them, people write them, and tests read them
//! back.
//!
//! A line is a verb and its words ([`VERBS`]). `%` and two hexadecimal digits stand for a byte that
//! would end a word, begin a comment, or mean something to a shell. A file to read or write is a
//! slot, `@0` to `@2`, or a path, which is then opened in slot `@2` for this operation alone.

mod verbs;
mod words;

use std::fmt;

use anyhow::{Result, anyhow, bail};

use super::op::Op;
use words::{ClockWord, Kind, Words};

pub use verbs::{VERBS, Verb};
pub use words::SCRATCH_SLOT;

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Clock(how) => {
                f.write_str("clock")?;
                ClockWord.write(how, f)
            }
            Op::GroupDo(op) => write!(f, "group-do {op}"),
            op => verbs::write(op, f),
        }
    }
}

/// Returns the operations of a line: one, or three if it names a path where a slot could stand.
///
/// # Errors
/// The mistake in the line, and how to write the verb.
pub fn read_line(line: &str) -> Result<Vec<Op>> {
    let mut words = Words::new(line);
    let name = words.next("the verb")?;
    let Some(verb) = VERBS.iter().find(|verb| verb.name == name) else {
        bail!("there is no operation \"{name}\"");
    };
    let read = read_ops(name, &mut words).and_then(|ops| match words.any() {
        Some(more) => bail!("\"{more}\" is too much"),
        None => Ok(ops),
    });
    read.map_err(|error| anyhow!("{error:#}; it is {name} {}", verb.words))
}

fn read_ops(name: &str, words: &mut Words<'_>) -> Result<Vec<Op>> {
    let op = match name {
        "group-do" => {
            let name = words.next("the verb")?;
            let ops = read_ops(name, words)?;
            return match <[Op; 1]>::try_from(ops) {
                Ok([op]) if op.fits_group() => Ok(vec![Op::GroupDo(Box::new(op))]),
                _ => bail!("a group cannot do that {name}"),
            };
        }
        "clock" => Op::Clock(ClockWord.read(words)?),
        _ => verbs::read(name, words)?,
    };
    let Some(path) = words.opened() else {
        return Ok(vec![op]);
    };
    let (slot, truncate) = (SCRATCH_SLOT, false);
    let open = Op::Open {
        slot,
        path,
        truncate,
    };
    Ok(vec![open, op, Op::Close { slot }])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::draw::stream;
    use crate::world::op::Profile;

    #[test]
    fn whatever_is_drawn_reads_back() {
        for op in stream(7, 5000, Profile::default()) {
            let line = op.to_string();
            let read = read_line(&line).unwrap_or_else(|error| panic!("{line}: {error:#}"));
            assert_eq!(read, [op], "{line}");
            assert!(!line.contains([';', '\'', '"', '#', '\n']), "{line}");
        }
    }

    /// Every verb reads and writes the line that it always had, because failures are named by such
    /// lines.
    #[test]
    fn each_verb_reads_and_writes_the_same_line() {
        let lines = [
            "create d/f 600 excl",
            "mkdir d 755",
            "mkfifo p 644",
            "mksocket s 644",
            "mkchar c 1 3 644",
            "mkblock b 8 1 644",
            "symlink to%20there l",
            "link f g",
            "link @1 g",
            "unlink f",
            "rmdir d",
            "rename f g",
            "rename f g whiteout",
            "open @0 f truncate",
            "tmpfile @2 d 600",
            "close @0",
            "write @0 10 20 3 dsync",
            "append @0 20 3",
            "read @0 10 20",
            "truncate f 100",
            "truncate @0 100",
            "fallocate @0 10 20 keep-size",
            "punch @0 10 20",
            "zero @0 10 20",
            "setxattr f user.x 10 2 replace",
            "getxattr f user.x",
            "removexattr f user.x",
            "listxattr f",
            "setacl f access u=7,g=5,o=5,u1000=6,m=7",
            "setacl d default none",
            "chmod f 4755",
            "chown f 5 -",
            "utimes f -5.000000001 6.999999999",
            "stat f",
            "readlink l",
            "readdir d",
            "fsync @0",
            "fdatasync @0",
            "fsyncdir d",
            "sync",
            "commit",
            "expire",
            "fill 40",
            "group-begin",
            "group-switch",
            "group-do chown f - 6",
            "group-write @0 10 20 3",
            "group-read @0 10 20",
            "group-commit lazy",
            "group-abort",
            "remount",
            "checkpoint",
            "crash",
            "clock still",
            "clock 7.000000008",
            "chattr f -j",
            "store @0 10 20 3",
            "copy @0 10 @1 20 30",
        ];
        for line in lines {
            let ops = read_line(line).expect(line);
            assert_eq!(ops.len(), 1, "{line}");
            assert_eq!(ops[0].to_string(), line);
        }
        for verb in VERBS {
            let is_of = |line: &str| line.split(' ').next() == Some(verb.name);
            assert!(lines.iter().any(|line| is_of(line)), "{}", verb.name);
        }
    }

    #[test]
    fn groups_read_back() {
        for line in [
            "group-begin",
            "group-switch",
            "group-do create f 644 excl",
            "group-do rename d/f g exchange",
            "group-do open @0 g",
            "group-do truncate g 100",
            "group-write @0 10 20 3",
            "group-read @1 10 20",
            "group-commit",
            "group-commit lazy",
            "group-abort",
        ] {
            let ops = read_line(line).expect(line);
            assert_eq!(ops.len(), 1);
            assert_eq!(ops[0].to_string(), line);
        }
        let error = format!("{:#}", read_line("group-commit now").expect_err("too much"));
        assert!(error.contains("it is group-commit [lazy]"), "{error}");
        for line in [
            "fsync f",
            "fsync @0",
            "open @0 f truncate",
            "group-do sync",
            "write f 0 9",
        ] {
            let line = format!("group-do {line}");
            let error = format!("{:#}", read_line(&line).expect_err(&line));
            assert!(error.contains("a group cannot do that"), "{line}: {error}");
        }
        let error = format!("{:#}", read_line("group-do mkdir").expect_err("too little"));
        assert!(
            error.contains("the path is missing; it is group-do VERB"),
            "{error}"
        );
    }

    #[test]
    fn words_may_hold_anything() {
        for name in ["with space", "@0", "100%", "semi;colon", "'quoted'", "ü"] {
            let op = Op::Unlink { path: name.into() };
            assert_eq!(read_line(&op.to_string()).expect(name), [op]);
        }
    }

    #[test]
    fn a_path_is_opened_for_the_operation() {
        let ops = read_line("write d/f 10 20").expect("a line");
        let shown: Vec<_> = ops.iter().map(ToString::to_string).collect();
        assert_eq!(shown, ["open @2 d/f", "write @2 10 20 1", "close @2"]);
    }

    #[test]
    fn wrong_lines_say_how_it_is_done() {
        for (line, why) in [
            ("frobnicate x", "no operation"),
            ("write f 10", "the length is missing"),
            ("write f ten 20", "the offset cannot be \"ten\""),
            ("unlink f g", "\"g\" is too much"),
            ("open 0 f", "no slot such as @0"),
            ("open @9 f", "@0 to @2"),
            ("chmod f 888", "octal"),
            ("setacl f access u=9", "no entry of an ACL"),
        ] {
            let error = format!("{:#}", read_line(line).expect_err(line));
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
