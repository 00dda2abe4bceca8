//! Marks: the promises that a program makes while it is recorded.
//!
//! A program writes a line to a pipe or to its standard output. The line stands before the next
//! change in the recording: this process reads the pipes before it makes each change, and the
//! program has written the line before it asked for the change.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use regex_lite::Regex;
use rustix::fs::{FileType, Mode, OFlags};

/// Makes a promise: writes a line to the FIFO that `$STETFS_MARKS` names, in one write, so that no
/// other process's line comes in between.
///
/// # Errors
/// The FIFO cannot be written.
pub fn promise(fifo: &Path, line: &str) -> io::Result<()> {
    let mut fifo = OpenOptions::new().write(true).open(fifo)?;
    fifo.write_all(format!("{line}\n").as_bytes())
}

/// The pipes that marks come through.
#[derive(Debug, Default)]
pub struct Marks {
    pipes: Vec<Pipe>,
}

#[derive(Debug)]
struct Pipe {
    from: File,
    /// Only lines that match are marks. `None`: every line.
    only: Option<Regex>,
    /// The beginning of an unfinished line.
    partial: Vec<u8>,
    /// All bytes are copied to this file.
    copy: Option<File>,
}

impl Marks {
    /// No pipes yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes a FIFO at `path`. Each line is a mark. Writers never wait for a reader.
    ///
    /// # Errors
    /// The FIFO cannot be made.
    pub(crate) fn read_fifo(&mut self, path: &Path) -> io::Result<()> {
        let mode = Mode::from_raw_mode(0o622);
        rustix::fs::mknodat(rustix::fs::CWD, path, FileType::Fifo, mode, 0)?;
        rustix::fs::chmod(path, mode)?;
        // Open for both directions, so that it always has a reader and a writer.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        self.add(fd, None, None);
        Ok(())
    }

    /// Makes a pipe and returns the program's end. Each line that matches is a mark; all bytes go
    /// to `copy` too.
    ///
    /// # Errors
    /// The pipe cannot be made.
    pub(crate) fn read_output(&mut self, only: Regex, copy: File) -> io::Result<OwnedFd> {
        let (ours, theirs) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&ours, OFlags::NONBLOCK)?;
        self.add(ours, Some(only), Some(copy));
        Ok(theirs)
    }

    fn add(&mut self, fd: OwnedFd, only: Option<Regex>, copy: Option<File>) {
        self.pipes.push(Pipe {
            from: fd.into(),
            only,
            partial: Vec::new(),
            copy,
        });
    }

    /// Returns descriptors to poll: one is readable when bytes have come.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn readable(&self) -> io::Result<Vec<OwnedFd>> {
        let fds = self.pipes.iter().map(|pipe| pipe.from.as_fd());
        fds.map(|fd| fd.try_clone_to_owned()).collect()
    }

    /// Returns the marks that have come, without waiting.
    pub fn take(&mut self) -> Vec<String> {
        self.pipes.iter_mut().flat_map(Pipe::take).collect()
    }

    /// Returns the unfinished lines, once nothing more comes.
    pub fn rest(&mut self) -> Vec<String> {
        let rests = self.pipes.iter_mut().filter_map(|pipe| {
            let line = std::mem::take(&mut pipe.partial);
            (!line.is_empty()).then(|| pipe.chosen(&line)).flatten()
        });
        rests.collect()
    }
}

impl Pipe {
    fn take(&mut self) -> Vec<String> {
        let mut buffer = [0; 4096];
        loop {
            match self.from.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(n) => {
                    self.partial.extend_from_slice(&buffer[..n]);
                    if let Some(copy) = &mut self.copy {
                        // The copy is for people: a failed write must not stop the run.
                        let _ = io::Write::write_all(copy, &buffer[..n]);
                    }
                }
            }
        }
        let mut lines = Vec::new();
        while let Some(end) = self.partial.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            lines.extend(self.chosen(&line[..end]));
        }
        lines
    }

    fn chosen(&self, line: &[u8]) -> Option<String> {
        let line = String::from_utf8_lossy(line).into_owned();
        let is_wanted = self.only.as_ref().is_none_or(|only| only.is_match(&line));
        is_wanted.then_some(line)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn lines_come_whole_and_only_those_that_match() {
        let mut marks = Marks::new();
        let copy = tempfile::tempfile().unwrap();
        let only = Regex::new("^done").unwrap();
        let theirs = marks.read_output(only, copy.try_clone().unwrap()).unwrap();
        let mut theirs = File::from(theirs);
        theirs.write_all(b"begin\ndone 1\ndo").unwrap();
        assert_eq!(marks.take(), ["done 1"]);
        theirs.write_all(b"ne 2").unwrap();
        assert!(marks.take().is_empty());
        assert_eq!(marks.rest(), ["done 2"]);
    }

    #[test]
    fn a_fifo_is_written_to_without_a_reader_that_waits() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("marks");
        let mut marks = Marks::new();
        marks.read_fifo(&path).unwrap();
        std::fs::write(&path, "one\n").unwrap();
        std::fs::write(&path, "two\n").unwrap();
        assert_eq!(marks.take(), ["one", "two"]);
    }
}
