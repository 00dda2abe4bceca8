//! A random walk of a file's blocks through all their moves, compared with a model of their
//! contents.

use std::collections::BTreeMap;
use std::sync::Arc;

use stetfs_format::{BlockNo, BlockSize, InodeNo, LBlock, Tid};
use stetfs_media::sim::SimOptions;
use stetfs_media::{Block, BlockRef, Class, Image};
use stetfs_scheme::{OpenArgs, Opened, SchemeOptions};

use crate::file_data::{FileData, Part};
use crate::moves::tests::missing;
use crate::page::Page;

const BLOCK: usize = 1024;
/// Length of the file in blocks.
const BLOCKS: u32 = 12;

struct Rng(u64);

impl Rng {
    fn below(&mut self, n: u32) -> u32 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) % u64::from(n)) as u32
    }
}

fn served() -> Opened {
    let args = OpenArgs {
        dev: Arc::new(SimOptions::default().build(Image::new(1 << 20))),
        nvm: None,
        nvm_new: false,
        block_size: BlockSize::of(1024),
        blocks: 1024,
        uuid: [7; 16],
        has_64bit: true,
        has_metadata_csum: true,
        log: Vec::new(),
        memory: 1 << 20,
        has_private_log: false,
        inode_size: 256,
        writable: true,
        options: SchemeOptions::default(),
    };
    let null = stetfs_schemes::find("null").expect("a scheme");
    null.open(args).expect("it opens")
}

fn block(bytes: &[u8]) -> BlockRef {
    Block::copy_of(bytes).into()
}

/// A file and its model.
struct World {
    file: Arc<FileData>,
    served: Opened,
    /// New data is delayed.
    delays: bool,
    tid: Tid,
    /// The blocks of the commit that is under way: block, home, content.
    committing: Option<Vec<(LBlock, BlockNo, Vec<u8>)>>,
    /// The contents that a reader must see.
    newest: BTreeMap<u32, Vec<u8>>,
    /// The file's mapping.
    homes: BTreeMap<u32, BlockNo>,
    /// The contents of the homes.
    disk: BTreeMap<u64, Vec<u8>>,
    used: u64,
    rng: Rng,
}

impl World {
    fn write(&mut self) {
        let lblk = self.rng.below(BLOCKS);
        let is_whole = self.rng.below(2) == 0;
        let fill = [self.rng.below(256) as u8; BLOCK];
        let at = self.rng.below(BLOCK as u32 / 2) as usize;
        let (offset, bytes) = if is_whole {
            (0, &fill[..])
        } else {
            (at, &fill[..8])
        };
        let is_cached = self.file.get(LBlock(lblk)).is_some();
        let absent = match self.homes.get(&lblk) {
            _ if is_cached => None,
            None => Some(Page::hole(block(&[0; BLOCK]))),
            Some(home) if is_whole => Some(Page::unread(block(&[0; BLOCK]), *home)),
            Some(home) => Some(Page::clean(block(&self.disk[&home.0]), Class::Data, *home)),
        };
        let part = Part {
            lblk: LBlock(lblk),
            offset,
            bytes,
            whole: false,
        };
        let (tid, served) = (self.tid, &self.served);
        let wrote = self
            .file
            .write(tid, self.delays, served, &part, absent, |_| ());
        assert!(wrote.expect("a write").is_some(), "block {lblk} is written");
        let newest = self.newest.entry(lblk).or_insert_with(|| vec![0; BLOCK]);
        newest[offset..offset + bytes.len()].copy_from_slice(bytes);
    }

    fn close(&mut self) {
        let mut reqs = smallvec::SmallVec::new();
        self.file.to_place(self.tid, &self.served, &mut reqs);
        let homes: Vec<_> = reqs.iter().map(|_| self.new_home()).collect();
        for (req, home) in reqs.iter().zip(&homes) {
            self.homes.insert(req.lblk.0, *home);
        }
        self.file.placed(&reqs, &homes);
        let mut snapshot = Vec::new();
        self.file.close(self.tid, |lblk, page, _| {
            let home = page.home.expect("all are placed");
            assert_eq!(
                page.content.to_vec(),
                self.newest[&lblk.0],
                "{lblk} at the commit"
            );
            snapshot.push((lblk, home, page.content.to_vec()));
        });
        self.committing = Some(snapshot);
        self.tid = self.tid.next();
    }

    fn new_home(&mut self) -> BlockNo {
        self.used += 1;
        BlockNo(self.used)
    }

    fn finish(&mut self, snapshot: Vec<(LBlock, BlockNo, Vec<u8>)>) {
        let blocks = snapshot.iter().map(|(lblk, ..)| *lblk);
        for (_, home, content) in &snapshot {
            self.disk.insert(home.0, content.clone());
        }
        let keeps_odd = self.rng.below(2) == 0;
        let keeps = |home: BlockNo| keeps_odd || home.0.is_multiple_of(2);
        let tid = Tid(self.tid.0.wrapping_sub(1));
        self.file.committed(tid, blocks, keeps);
    }

    fn overwrite(&mut self) {
        let Some(found) = self.file.overwritten() else {
            return;
        };
        // A commit may take the blocks while they are being written home.
        if self.rng.below(2) == 0 {
            self.close();
        }
        for (home, content) in &found.blocks {
            self.disk.insert(home.0, content.to_vec());
        }
        self.file.overwritten_home(&found);
    }

    fn discard(&mut self) {
        let from = self.rng.below(BLOCKS);
        let to = (self.rng.below(2) == 0).then(|| from + 1 + self.rng.below(4));
        self.file.discard(self.tid, LBlock(from), to.map(LBlock));
        let is_kept = |l: &u32| *l < from || to.is_some_and(|to| *l >= to);
        self.newest.retain(|l, _| is_kept(l));
        self.homes.retain(|l, _| is_kept(l));
    }

    fn step(&mut self) {
        match self.rng.below(16) {
            0..8 => self.write(),
            8 => {
                let file = &self.file;
                let enlisted = file.enlist(self.tid, &self.served, u32::MAX, 3, 2, |_| ());
                enlisted.expect("blocks join");
            }
            9 if self.committing.is_none() => self.close(),
            9 | 10 => {
                if let Some(snapshot) = self.committing.take() {
                    self.finish(snapshot);
                }
            }
            11 | 12 => self.overwrite(),
            13 => self.discard(),
            _ => self.file.evict(3),
        }
    }

    fn check(&self, what: &str) {
        for l in 0..BLOCKS {
            let cached = self.file.get(LBlock(l)).map(|content| content.to_vec());
            let home = self.homes.get(&l);
            let found = cached.or_else(|| home.map(|home| self.disk[&home.0].clone()));
            assert_eq!(found, self.newest.get(&l).cloned(), "{what}: block {l}");
        }
    }
}

#[test]
fn a_walk_makes_every_move_and_no_other() {
    for seed in 0..40 {
        let mut world = World {
            file: Arc::new(FileData::new(InodeNo(12), Arc::default())),
            served: served(),
            delays: seed % 2 == 0,
            tid: Tid(1),
            committing: None,
            newest: BTreeMap::new(),
            homes: BTreeMap::new(),
            disk: BTreeMap::new(),
            used: 0,
            rng: Rng(seed),
        };
        for step in 0..500 {
            world.step();
            world.check(&format!("seed {seed}, step {step}"));
        }
    }
    assert_eq!(missing(), [], "moves that nothing has made");
}
