//! The media and arguments with which schemes are opened, and the transactions that they get.

use std::collections::BTreeMap;
use std::sync::Arc;

use stetfs_format::checksum::crc32c;
use stetfs_format::jbd2::{JBD2_MAGIC, JournalCompat, JournalIncompat, JournalSuperblock};
use stetfs_format::{BlockNo, BlockSize, InodeNo, LBlock, Tid};
use stetfs_media::sim::SimPmem;
use stetfs_media::{Block, BlockDev, BlockRef, Class, Image, Pmem, PmemDev, SimDev, Tag};
use stetfs_scheme::{
    About, Beside, DataMode, Ground, InMemory, LogExtent, LoggedBlock, OpenArgs, Opened, Origin,
    Ranges, RecoveryCase, Registration, SchemeOptions, Snapshot, Trial, Wants,
};

pub(crate) const BLOCK: usize = 1024;
pub(crate) const BLOCKS: u64 = 256;
pub(crate) const UUID: [u8; 16] = [7; 16];
pub(crate) const LOG: [LogExtent; 2] = [
    LogExtent {
        start: BlockNo(20),
        len: 30,
    },
    LogExtent {
        start: BlockNo(70),
        len: 34,
    },
];
/// Blocks that transactions change; odd ones are data.
pub(crate) const WORLD: std::ops::Range<u64> = 200..216;
/// The most of them in one transaction.
pub(crate) const MOST: u64 = 6;

/// The newest content of each block in use.
pub(crate) type World = BTreeMap<u64, BlockRef>;

pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1);
        (self.0 >> 33) % n
    }
}

/// Makes a volume with an empty journal and nothing else.
pub(crate) fn volume() -> Image {
    volume_with_log(LOG.iter().map(|extent| extent.len).sum())
}

/// Makes such a volume, with a log of only the first `maxlen` blocks of its inode.
pub(crate) fn volume_with_log(maxlen: u32) -> Image {
    let superblock = JournalSuperblock {
        is_v2: true,
        blocksize: BLOCK as u32,
        maxlen,
        first: 1,
        sequence: Tid(1),
        start: 0,
        errno: 0,
        feature_compat: JournalCompat::empty(),
        feature_incompat: JournalIncompat::empty(),
        feature_ro_compat: 0,
        uuid: UUID,
        nr_users: 1,
        max_transaction: 0,
        max_trans_data: 0,
        checksum_type: 0,
        num_fc_blks: 0,
        head: 0,
    };
    let mut raw = vec![0; BLOCK];
    superblock.encode_into(&mut raw);
    let mut image = Image::new(BLOCKS * BLOCK as u64);
    image.write(LOG[0].start.0 * BLOCK as u64, &raw);
    image
}

fn memory() -> Arc<dyn Pmem> {
    Arc::new(SimPmem::new(Image::new(1 << 20)))
}

/// The media and arguments with which a scheme is opened.
pub(crate) struct Rig {
    pub(crate) dev: Arc<dyn BlockDev>,
    pub(crate) nvm: Option<Arc<dyn Pmem>>,
    pub(crate) uuid: [u8; 16],
    /// The volume's length, as the scheme is told.
    pub(crate) blocks: u64,
    /// The place of the log, as the scheme is told.
    pub(crate) log: Vec<LogExtent>,
    pub(crate) writable: bool,
    /// A trial's options; `None`: `data=journal`, if the scheme has that mode.
    pub(crate) options: Option<SchemeOptions>,
}

impl Rig {
    pub(crate) fn new(about: &About) -> Self {
        let dev: Arc<dyn BlockDev> = if about.in_memory == InMemory::Only {
            Arc::new(PmemDev::new(Arc::new(SimPmem::new(volume()))))
        } else {
            Arc::new(SimDev::new(volume()))
        };
        Self {
            dev,
            nvm: about.nvm.is_needed().then(memory),
            uuid: UUID,
            blocks: BLOCKS,
            log: LOG.to_vec(),
            writable: true,
            options: None,
        }
    }

    /// Makes a rig without and one with memory beside the volume, as far as the scheme works so.
    pub(crate) fn each(about: &About) -> Vec<Self> {
        let mut rigs = vec![Self::new(about)];
        if let Beside::Too(_) = about.nvm {
            rigs.push(Self {
                nvm: Some(memory()),
                ..Self::new(about)
            });
        }
        rigs
    }

    /// Makes the rig of a trial; `None` if it needs more than a plain device or plain memory.
    pub(crate) fn of(trial: &Trial) -> Option<Self> {
        let dev: Arc<dyn BlockDev> = match trial.ground {
            Ground::Memory => Arc::new(PmemDev::new(Arc::new(SimPmem::new(volume())))),
            Ground::Block | Ground::Nvram | Ground::NvmCache => Arc::new(SimDev::new(volume())),
            Ground::Flash | Ground::Reflink => return None,
        };
        Some(Self {
            nvm: trial.ground.has_nvm().then(memory),
            ..Self::on(dev).with(trial)
        })
    }

    /// Makes a rig on a plain device.
    pub(crate) fn on(dev: Arc<dyn BlockDev>) -> Self {
        Self {
            dev,
            nvm: None,
            uuid: UUID,
            blocks: BLOCKS,
            log: LOG.to_vec(),
            writable: true,
            options: None,
        }
    }

    /// Returns this rig with the options of a trial.
    pub(crate) fn with(self, trial: &Trial) -> Self {
        Self {
            options: Some(options_of(trial)),
            ..self
        }
    }

    pub(crate) fn open(
        &self,
        scheme: &'static Registration,
        is_marked: bool,
    ) -> stetfs_scheme::Result<Opened> {
        let has_it = scheme.about.modes.contains(&DataMode::Journal);
        let usual = SchemeOptions {
            data: has_it.then_some(DataMode::Journal),
            extra: Vec::new(),
        };
        let options = self.options.clone().unwrap_or(usual);
        self.open_with(scheme, is_marked, options)
    }

    pub(crate) fn open_with(
        &self,
        scheme: &'static Registration,
        is_marked: bool,
        options: SchemeOptions,
    ) -> stetfs_scheme::Result<Opened> {
        let opened = scheme.open(OpenArgs {
            dev: self.dev.clone(),
            nvm: self.nvm.clone(),
            nvm_new: false,
            block_size: BlockSize::of(BLOCK),
            blocks: self.blocks,
            uuid: self.uuid,
            has_64bit: true,
            has_metadata_csum: true,
            log: self.log.clone(),
            memory: 1 << 20,
            has_private_log: is_marked,
            inode_size: 256,
            writable: self.writable,
            options,
        })?;
        let refusal = |row: &&&RecoveryCase| row.done.starts_with("error");
        let passed_over = opened.report.reached.iter().find(refusal);
        let found = passed_over.map(|row| row.found);
        assert_eq!(found, None, "{}: opened all the same", scheme.about.name);
        Ok(opened)
    }

    /// Reads a block from home.
    pub(crate) fn home(&self, block: u64) -> Vec<u8> {
        let mut found = vec![0; BLOCK];
        let tag = Tag::read(Class::Data);
        let read = self.dev.read_at(block * BLOCK as u64, &mut found, tag);
        read.expect("a read");
        found
    }

    pub(crate) fn is_home(&self, world: &World) -> bool {
        let mut blocks = world.iter();
        blocks.all(|(block, content)| self.home(*block)[..] == content[..])
    }
}

/// Returns the options of a trial.
fn options_of(trial: &Trial) -> SchemeOptions {
    use DataMode::{Journal, Ordered, Writeback};
    let (mode, extra) = trial.parts();
    let modes = [Journal, Ordered, Writeback].into_iter();
    let option = |word: &str| match word.split_once('=') {
        Some((name, value)) => (name.to_owned(), value.to_owned()),
        None => (word.to_owned(), "on".to_owned()),
    };
    SchemeOptions {
        data: mode.and_then(|name| { modes }.find(|mode| mode.name() == name)),
        extra: extra.map(option).collect(),
    }
}

/// Ends a block with its checksum, as blocks of directories and extents do. Then the CRC-32C of the
/// whole block is the same for every content.
fn seal(block: &mut [u8]) {
    let (body, tail) = block.split_at_mut(BLOCK - 4);
    tail.copy_from_slice(&crc32c(!0, body).to_le_bytes());
}

/// Changes a few pieces of a block, some of them to their old bytes. Returns the new content, and
/// the ranges that a journal would report.
fn pieces(old: &BlockRef, rng: &mut Rng, wants: Wants) -> (Block, Ranges) {
    let mut content = Block::zeroed(BLOCK);
    content.bytes_mut().copy_from_slice(old);
    let mut ranges = Ranges::new();
    for _ in 0..1 + rng.below(3) {
        let (at, longest) = (rng.below(BLOCK as u64 - 300) as usize, 1 << rng.below(9));
        let len = 1 + rng.below(longest) as usize;
        let piece = match rng.below(3) {
            0 => old[at..at + len].to_vec(),
            _ => vec![rng.below(256) as u8; len],
        };
        match wants.changed_bytes {
            0 => ranges.add(at, piece.len()),
            _ => ranges.add_changes(at, content.bytes(), &piece),
        }
        content.bytes_mut()[at..at + piece.len()].copy_from_slice(&piece);
    }
    (content, ranges)
}

/// Makes the next transaction, and applies it to the world.
pub(crate) fn transaction(tid: u32, world: &mut World, rng: &mut Rng, wants: Wants) -> Snapshot {
    let mut snapshot = Snapshot {
        tid: Tid(tid),
        meta: Vec::new(),
        data: Vec::new(),
        revoked: Vec::new(),
        time: (u64::from(tid), 0),
    };
    let before = world.clone();
    for _ in 0..1 + rng.below(MOST) {
        let block = WORLD.start + rng.below(WORLD.end - WORLD.start);
        let home = BlockNo(block);
        let known = snapshot.meta.iter().chain(&snapshot.data).map(|b| b.home);
        if known
            .chain(snapshot.revoked.iter().copied())
            .any(|b| b == home)
        {
            continue;
        }
        if before.contains_key(&block) && rng.below(5) == 0 {
            world.remove(&block);
            snapshot.revoked.push(home);
            continue;
        }
        let old = before.get(&block);
        let (content, ranges) = match old {
            Some(old) if rng.below(2) == 0 => pieces(old, rng, wants),
            _ => {
                let mut content = Block::zeroed(BLOCK);
                content.bytes_mut().fill(rng.below(256) as u8);
                if rng.below(4) == 0 {
                    content.bytes_mut()[..4].copy_from_slice(&JBD2_MAGIC.to_be_bytes());
                }
                if rng.below(2) == 0 {
                    seal(content.bytes_mut());
                }
                (content, Ranges::whole(BLOCK))
            }
        };
        let content = BlockRef::from(content);
        world.insert(block, content.clone());
        let is_data = block % 2 == 1;
        let logged = LoggedBlock {
            home,
            class: if is_data {
                Class::Data
            } else {
                Class::Directory
            },
            content,
            base: old.filter(|_| wants.base).cloned(),
            ranges,
            origin: origin_of(&old),
            whole: block % 4 == 1,
            owner: is_data.then_some((InodeNo(block as u32), LBlock(0))),
            spot: None,
        };
        if is_data {
            snapshot.data.push(logged)
        } else {
            snapshot.meta.push(logged)
        }
    }
    snapshot
}

/// Returns the origin of a block whose home had this content.
fn origin_of(old: &Option<impl Sized>) -> Origin {
    if old.is_none() {
        Origin::Fresh
    } else {
        Origin::Old
    }
}

/// Makes a transaction of `blocks` whole blocks of metadata, behind the log.
pub(crate) fn long_transaction(tid: u32, blocks: u64, world: &mut World, base: bool) -> Snapshot {
    let filled = |block| [(tid + block as u32) as u8; 4];
    transaction_of(tid, blocks, world, base, filled)
}

/// Makes such a transaction, of blocks filled with the words that `word` gives.
pub(crate) fn transaction_of(
    tid: u32,
    blocks: u64,
    world: &mut World,
    base: bool,
    word: impl Fn(u64) -> [u8; 4],
) -> Snapshot {
    let meta = (BLOCKS - blocks..BLOCKS).map(|block| {
        let content = word(block).repeat(BLOCK / 4);
        let content = Block::copy_of(&content);
        let content = BlockRef::from(content);
        let old = world.insert(block, content.clone());
        LoggedBlock {
            home: BlockNo(block),
            class: Class::Directory,
            content,
            ranges: Ranges::whole(BLOCK),
            origin: origin_of(&old),
            base: old.filter(|_| base),
            whole: false,
            owner: None,
            spot: None,
        }
    });
    Snapshot {
        tid: Tid(tid),
        meta: meta.collect(),
        data: Vec::new(),
        revoked: Vec::new(),
        time: (u64::from(tid), 0),
    }
}
