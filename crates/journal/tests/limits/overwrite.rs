//! Overwritten data goes home without a transaction, never at the same time as another version of
//! the same block, and never to a home that is no longer its own.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, Weak};
use std::thread;
use std::time::Duration;

use stetfs_format::{BlockNo, InodeNo, LBlock, Tid};
use stetfs_journal::{FileData, Journal, Old, Placer};
use stetfs_media::{BlockDev, Cause, Class, Layer, MediaError, RamDev, Tag};
use stetfs_scheme::Goal;

use crate::{BLOCK, InOrder, LOG, formatted, open_on};

/// Where [`InOrder`] puts the file's first block.
const HOME: BlockNo = BlockNo(1000);

/// A device that holds back one write of data home when it is armed: until another one comes, or
/// for a moment, because none should come.
struct Held {
    below: RamDev,
    hold: Mutex<Option<(Sender<()>, Receiver<()>)>>,
    go_on: Mutex<Option<Sender<()>>>,
    /// The first byte of each block that was written home, and the test's own notes.
    events: Mutex<Vec<u8>>,
}

impl Held {
    /// Makes the next write of data wait; the receiver says when that write has come.
    fn arm(&self) -> Receiver<()> {
        let (begun, has_begun) = channel();
        let (go_on, may_go_on) = channel();
        *self.hold.lock().unwrap() = Some((begun, may_go_on));
        *self.go_on.lock().unwrap() = Some(go_on);
        has_begun
    }

    fn note(&self, event: u8) {
        self.events.lock().unwrap().push(event);
    }
}

impl Layer for Held {
    fn below(&self) -> &dyn BlockDev {
        &self.below
    }

    fn write_vectored_at(&self, offset: u64, parts: &[&[u8]], tag: Tag) -> Result<(), MediaError> {
        if tag != Tag::new(Class::Data, Cause::Home) {
            return self.below.write_vectored_at(offset, parts, tag);
        }
        let held = self.hold.lock().unwrap().take();
        if let Some((begun, may_go_on)) = &held {
            begun.send(()).unwrap();
            let _ = may_go_on.recv_timeout(Duration::from_millis(300));
        }
        self.below.write_vectored_at(offset, parts, tag)?;
        self.note(parts[0][0]);
        if held.is_none()
            && let Some(go_on) = &*self.go_on.lock().unwrap()
        {
            let _ = go_on.send(());
        }
        Ok(())
    }
}

/// A file of one block, which is full of ones, home and durable.
struct World {
    dev: Arc<Held>,
    journal: Arc<Journal>,
    file: Arc<FileData>,
    _placer: Arc<dyn Placer>,
}

impl World {
    fn new() -> Self {
        let dev = Arc::new(Held {
            below: formatted(LOG),
            hold: Mutex::default(),
            go_on: Mutex::default(),
            events: Mutex::default(),
        });
        let journal = open_on(dev.clone(), 1 << 20, 256 * BLOCK, LOG, None);
        let placer: Arc<dyn Placer> = Arc::new(InOrder);
        let weak: Weak<dyn Placer> = Arc::downgrade(&placer);
        journal.attach(weak);
        let file = journal.file(InodeNo(12));
        let world = Self {
            dev,
            journal,
            file,
            _placer: placer,
        };
        let tid = world.write(1, Old::Hole, false);
        world.journal.commit(tid).unwrap();
        world
    }

    /// Fills the block with `byte`.
    fn write(&self, byte: u8, old: Old, whole: bool) -> Tid {
        let handle = self.journal.start(4).unwrap();
        let bytes = [byte; BLOCK];
        handle
            .write_data(&self.file, LBlock(0), 0, &bytes, old, whole)
            .unwrap();
        handle.tid()
    }

    fn overwrite(&self, byte: u8) -> Tid {
        self.write(byte, Old::Home(HOME), false)
    }

    /// Overwrites the block with twos, and runs `meanwhile` while they are on their way home
    /// without a transaction.
    fn while_written<R>(&self, meanwhile: impl FnOnce() -> R) -> R {
        self.overwrite(2);
        let has_begun = self.dev.arm();
        thread::scope(|scope| {
            let written = scope.spawn(|| self.journal.overwrite(&self.file));
            has_begun.recv().unwrap();
            let result = meanwhile();
            assert!(written.join().unwrap().unwrap());
            result
        })
    }

    fn at_home(&self) -> u8 {
        let mut block = [0; BLOCK];
        let tag = Tag::read(Class::Data);
        let at = HOME.0 * BLOCK as u64;
        self.dev.below.read_at(at, &mut block, tag).unwrap();
        block[0]
    }

    fn events(&self) -> Vec<u8> {
        self.dev.events.lock().unwrap().clone()
    }
}

#[test]
fn an_overwritten_block_needs_no_transaction() {
    let world = World::new();
    let before = world.journal.stats();
    let tid = world.overwrite(2);
    assert_eq!(world.file.pending().newest, Some(tid));
    assert!(world.journal.overwrite(&world.file).unwrap());
    let after = world.journal.stats();
    assert_eq!(world.at_home(), 2);
    assert_eq!(after.commits, before.commits);
    assert_eq!(after.overwritten_blocks, before.overwritten_blocks + 1);
    assert_eq!((world.file.pending().newest, after.dirty_bytes), (None, 0));
    // And the commit has nothing left to write.
    world.journal.commit(tid).unwrap();
    assert_eq!(world.journal.stats().commits, before.commits);
    // A block without a home does need a commit.
    let handle = world.journal.start(4).unwrap();
    let bytes = [3; BLOCK];
    handle
        .write_data(&world.file, LBlock(1), 0, &bytes, Old::Hole, false)
        .unwrap();
    drop(handle);
    assert!(!world.journal.overwrite(&world.file).unwrap());
}

#[test]
fn what_the_log_has_a_copy_of_takes_a_commit() {
    let world = World::new();
    let logged = world.write(2, Old::Home(HOME), true);
    assert!(!world.journal.overwrite(&world.file).unwrap());
    world.journal.commit(logged).unwrap();
    let tid = world.overwrite(3);
    // A replay would write the logged copy over it.
    assert!(!world.journal.overwrite(&world.file).unwrap());
    world.journal.commit(tid).unwrap();
    world.journal.checkpoint(Goal::All).unwrap();
    assert_eq!(world.at_home(), 3);
    world.overwrite(4);
    assert!(world.journal.overwrite(&world.file).unwrap());
    assert_eq!(world.at_home(), 4);
}

#[test]
fn a_commit_waits_for_what_is_on_its_way_home() {
    let world = World::new();
    world.while_written(|| {
        let tid = world.overwrite(3);
        world.journal.commit(tid).unwrap();
    });
    assert_eq!(world.events(), [1, 2, 3]);
    assert_eq!(world.at_home(), 3);
}

#[test]
fn what_a_commit_has_goes_home_with_it() {
    let world = World::new();
    let tid = world.overwrite(2);
    let has_begun = world.dev.arm();
    thread::scope(|scope| {
        let commit = scope.spawn(|| world.journal.commit(tid));
        has_begun.recv().unwrap();
        let next = world.overwrite(3);
        assert_eq!(world.file.pending().newest, Some(next));
        assert!(!world.journal.overwrite(&world.file).unwrap());
        commit.join().unwrap().unwrap();
        assert!(world.journal.overwrite(&world.file).unwrap());
    });
    assert_eq!(world.events(), [1, 2, 3]);
}

#[test]
fn a_home_is_not_given_up_while_it_is_written() {
    let world = World::new();
    world.while_written(|| {
        let handle = world.journal.start(4).unwrap();
        handle.discard_data(&world.file, LBlock(0), None);
        world.dev.note(0);
        drop(handle);
    });
    assert_eq!(world.events(), [1, 2, 0]);
}

#[test]
fn what_is_changed_on_its_way_home_stays_dirty() {
    let world = World::new();
    let tid = world.while_written(|| world.overwrite(3));
    assert_eq!(
        (world.at_home(), world.file.pending().newest),
        (2, Some(tid))
    );
    assert!(world.journal.overwrite(&world.file).unwrap());
    assert_eq!((world.at_home(), world.file.pending().newest), (3, None));
}
