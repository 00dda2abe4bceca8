//! JBD2's records: journals that debugfs and the kernel wrote are read, journals that we
//! wrote are replayed by e2fsck and the kernel, in every generation of tags and checksums.

mod image;

use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;

use image::{Image, Volume};
use stetfs_format::checksum::crc32_be;
use stetfs_format::jbd2::{
    BlockType, COMMIT_LAYOUT, ChecksumVersion, CommitBlock, DescriptorBlock, DescriptorWriter,
    Header, JBD2_MAGIC, JournalIncompat, JournalSuperblock, LogFormat, RevokeBlock, RevokeWriter,
    escape, needs_escape, unescape,
};
use stetfs_format::{
    BlockNo, BlockSize, Corrupt, FeatureIncompat, InodeNo, SUPERBLOCK_OFFSET, Tid, Time,
};

const JOURNAL: InodeNo = InodeNo(8);

/// The journal of an image: its superblock and where its blocks lie.
struct Log {
    sb: JournalSuperblock,
    blocks: Vec<BlockNo>,
}

impl Log {
    fn of(volume: &Volume) -> Self {
        let map = volume.map(JOURNAL);
        let blocks: Vec<BlockNo> = map
            .iter()
            .flat_map(|e| (0..e.len).map(|i| e.pblk.plus(i.into())))
            .collect();
        let raw = volume.block(blocks[0]);
        let sb = JournalSuperblock::decode(raw, volume.sb.block).expect("a superblock");
        assert_eq!(sb.maxlen as usize, blocks.len());
        let mut again = raw.to_vec();
        sb.encode_into(&mut again);
        assert_eq!(
            again, raw,
            "the journal superblock encodes to the same bytes"
        );
        Self { sb, blocks }
    }

    fn next(&self, at: u32) -> u32 {
        if at + 1 == self.sb.log_end() {
            self.sb.first
        } else {
            at + 1
        }
    }
}

#[derive(Debug, Default)]
struct Transaction {
    logged: Vec<(BlockNo, Vec<u8>)>,
    revoked: Vec<BlockNo>,
}

/// Returns all committed transactions of the log. Every checksum must fit.
fn read_log(volume: &Volume, log: &Log) -> BTreeMap<u32, Transaction> {
    let format = log.sb.log_format();
    let mut found = BTreeMap::new();
    let (mut at, mut tid) = (log.sb.start, log.sb.sequence);
    let (mut open, mut crc) = (Transaction::default(), !0);
    while at != 0 {
        let block = volume.block(log.blocks[at as usize]);
        let Some(header) = Header::decode(block).filter(|header| header.sequence == tid) else {
            break;
        };
        match header.known_type().expect("a known type") {
            BlockType::Descriptor => {
                crc = crc32_be(crc, block);
                let descriptor = DescriptorBlock::decode(block, &format).expect("a descriptor");
                for tag in descriptor.tags() {
                    let tag = tag.expect("a tag");
                    at = log.next(at);
                    let mut content = volume.block(log.blocks[at as usize]).to_vec();
                    assert!(format.is_intact(&tag, tid, &content));
                    crc = crc32_be(crc, &content);
                    if tag.escaped {
                        assert_eq!(content[..4], [0; 4]);
                        unescape(&mut content);
                    }
                    open.logged.push((tag.block, content));
                }
            }
            BlockType::Revoke => {
                let revoke = RevokeBlock::decode(block, &format).expect("a revoke block");
                open.revoked.extend(revoke.blocks());
            }
            BlockType::Commit => {
                let commit = CommitBlock::decode(block, &format).expect("a commit block");
                commit
                    .check_transaction(crc)
                    .expect("the transaction's checksum");
                if format.checksum == ChecksumVersion::V1 {
                    assert!(commit.transaction_crc.is_some());
                }
                found.insert(tid.0, std::mem::take(&mut open));
                (tid, crc) = (tid.next(), !0);
            }
            other => panic!("{other:?} in the log"),
        }
        at = log.next(at);
    }
    found
}

/// Returns what `debugfs logdump` finds: blocks and revoked blocks of each transaction.
fn dump(image: &Image) -> BTreeMap<u32, (Vec<u64>, Vec<u64>)> {
    let output = image.debugfs("logdump -a");
    let mut found: BTreeMap<u32, (Vec<u64>, Vec<u64>)> = BTreeMap::new();
    let mut sequence = 0;
    for line in output.lines() {
        let mut words = line.split_whitespace();
        let number =
            |text: Option<&str>| text.and_then(|text| text.trim_end_matches(',').parse().ok());
        if line.starts_with("Found expected sequence ") {
            sequence = number(words.nth(3)).expect("a sequence") as u32;
            found.entry(sequence).or_default();
        } else if line.starts_with("  FS block ") {
            let block = number(words.nth(2)).expect("a block");
            found.entry(sequence).or_default().0.push(block);
        } else if line.starts_with("  Revoke FS block ") {
            let block = number(words.nth(3)).expect("a block");
            found.entry(sequence).or_default().1.push(block);
        }
    }
    found
}

fn assert_same(ours: &BTreeMap<u32, Transaction>, theirs: &BTreeMap<u32, (Vec<u64>, Vec<u64>)>) {
    let ours: BTreeMap<u32, (Vec<u64>, Vec<u64>)> = ours
        .iter()
        .map(|(tid, transaction)| {
            let logged = transaction
                .logged
                .iter()
                .map(|(block, _)| block.0)
                .collect();
            let revoked = transaction.revoked.iter().map(|block| block.0).collect();
            (*tid, (logged, revoked))
        })
        .collect();
    assert_eq!(&ours, theirs);
}

#[test]
fn journals_that_debugfs_wrote() {
    for (options, version) in [
        ("", ChecksumVersion::None),
        ("-c -v 2", ChecksumVersion::V2),
        ("-c -v 3", ChecksumVersion::V3),
    ] {
        for features in ["64bit", "^64bit", "^64bit,^metadata_csum"] {
            if features.contains("^metadata_csum") && version != ChecksumVersion::None {
                continue;
            }
            let args = ["-t", "ext4", "-b", "1024", "-O", features];
            let Some(image) = Image::make(&args, 32 * 1024) else {
                continue;
            };
            let mut content: Vec<u8> = (0..300 * 1024u32).map(|i| (i / 7) as u8).collect();
            content[1024..1028].copy_from_slice(&JBD2_MAGIC.to_be_bytes());
            let file = image.file("content", &content);
            let blocks: Vec<u64> = (9000..9300).collect();
            let list = blocks
                .iter()
                .map(u64::to_string)
                .collect::<Vec<_>>()
                .join(",");
            // With short tags of v2 debugfs miscounts and writes the second transaction over
            // the first one's commit block; there it may write only one.
            let miscounts = version == ChecksumVersion::V2 && features.starts_with('^');
            let more = format!("jw -r 9001,9005\njw -b 9400 {file}\n");
            let more = if miscounts { "" } else { &*more };
            image.change(&format!("jo {options}\njw -b {list} {file}\n{more}jc\n"));
            let volume = image.read();
            let log = Log::of(&volume);
            assert_eq!(log.sb.log_format().checksum, version);
            let ours = read_log(&volume, &log);
            assert_same(&ours, &dump(&image));
            let logged: Vec<&(BlockNo, Vec<u8>)> = ours
                .values()
                .flat_map(|transaction| &transaction.logged)
                .collect();
            assert_eq!(logged.len(), if miscounts { 300 } else { 301 });
            for ((_, ours), theirs) in logged.iter().zip(content.chunks(1024)) {
                assert_eq!(ours, theirs);
            }
        }
    }
}

/// The log of a mounted file system, copied while it is dirty.
#[test]
fn journals_that_the_kernel_wrote() {
    for (features, options, version) in [
        ("64bit,metadata_csum", "data=journal", ChecksumVersion::V3),
        ("^64bit,metadata_csum", "data=ordered", ChecksumVersion::V3),
        (
            "^metadata_csum",
            "data=journal,journal_checksum",
            ChecksumVersion::V1,
        ),
        (
            "^metadata_csum,^64bit",
            "data=journal",
            ChecksumVersion::None,
        ),
    ] {
        let args = [
            "-t",
            "ext4",
            "-b",
            "1024",
            "-O",
            features,
            "-E",
            "lazy_itable_init=0",
        ];
        let Some(image) = Image::make(&args, 64 * 1024) else {
            continue;
        };
        let mut copy = Vec::new();
        let mounted = image.while_mounted(&["commit=1000", options], |root| {
            let sync = |path: &std::path::Path| {
                std::fs::File::open(path)
                    .expect("a file")
                    .sync_all()
                    .expect("fsync");
            };
            let mut content: Vec<u8> = (0..200 * 1024u32).map(|i| (i / 3) as u8).collect();
            for block in content.chunks_mut(1024).step_by(3) {
                block[..4].copy_from_slice(&JBD2_MAGIC.to_be_bytes());
            }
            for i in 0..5 {
                let dir = root.join(format!("dir{i}"));
                std::fs::create_dir(&dir).expect("mkdir");
                for j in 0..30 {
                    std::fs::write(dir.join(format!("file{j}")), b"small").expect("a file");
                }
                std::fs::write(dir.join("big"), &content).expect("a file");
                sync(&dir.join("big"));
            }
            std::fs::remove_dir_all(root.join("dir1")).expect("rm");
            sync(&root.join("dir2"));
            std::fs::remove_file(root.join("dir2/big")).expect("rm");
            sync(&root.join("dir2"));
            // Metadata of a committed transaction, freed: it must not come back.
            let mut file = std::fs::File::create(root.join("large")).expect("a file");
            for i in 0..400u64 {
                file.write_at(b"x", i * 8192).expect("a sparse file");
            }
            file.sync_all().expect("fsync");
            file.set_len(0).expect("truncate");
            // The last transaction has everything. The kernel may by now have written home what
            // older ones have.
            std::io::Write::write_all(&mut file, &content).expect("content");
            file.sync_all().expect("fsync");
            copy = image.snapshot();
        });
        if !mounted {
            continue;
        }
        std::fs::write(&image.path, &copy).expect("the copy");
        let volume = Volume::new(copy);
        assert!(
            volume
                .sb
                .feature_incompat
                .contains(FeatureIncompat::RECOVER)
        );
        let log = Log::of(&volume);
        assert_eq!(log.sb.log_format().checksum, version, "{features}");
        let ours = read_log(&volume, &log);
        assert!(!ours.is_empty(), "{features}: no transaction");
        assert_same(&ours, &dump(&image));
        let revoked: usize = ours
            .values()
            .map(|transaction| transaction.revoked.len())
            .sum();
        let escaped = ours
            .values()
            .flat_map(|transaction| &transaction.logged)
            .filter(|(_, content)| needs_escape(content))
            .count();
        // Where all data are journaled the kernel revokes nothing; elsewhere it journals none.
        let journals_data = options.contains("data=journal");
        assert_eq!(revoked > 0, !journals_data, "{features}: {revoked} revoked");
        assert_eq!(escaped > 0, journals_data, "{features}: {escaped} escaped");
    }
}

/// Writes transactions into a log.
struct Writer<'a> {
    volume: &'a mut Volume,
    log: &'a Log,
    format: LogFormat,
    at: u32,
    tid: Tid,
}

impl Writer<'_> {
    fn put(&mut self, block: &[u8]) {
        let home = self.log.blocks[self.at as usize];
        self.volume.block_mut(home).copy_from_slice(block);
        self.at = self.log.next(self.at);
    }

    fn transaction(&mut self, logged: &[(BlockNo, Vec<u8>)], revoked: &[BlockNo], commit: bool) {
        let mut crc = !0;
        let mut block = vec![0xaa; self.format.block_size.bytes()];
        for chunk in revoked.chunks(self.format.revokes_per_block()) {
            let mut revoke = RevokeWriter::new(&mut block, self.tid, &self.format);
            chunk.iter().for_each(|block| revoke.push(*block));
            assert_eq!(
                revoke.is_full(),
                chunk.len() == self.format.revokes_per_block()
            );
            revoke.finish();
            self.put(&block);
        }
        for chunk in logged.chunks(self.format.tags_per_block()) {
            let mut descriptor = DescriptorWriter::new(&mut block, self.tid, &self.format);
            let mut contents = Vec::new();
            for (home, content) in chunk {
                let escaped = needs_escape(content);
                let mut content = content.clone();
                if escaped {
                    escape(&mut content);
                }
                let checksum = self.format.data_checksum(self.tid, &content);
                descriptor.push(*home, escaped, checksum);
                contents.push(content);
            }
            assert_eq!(
                descriptor.is_full(),
                chunk.len() == self.format.tags_per_block()
            );
            descriptor.finish();
            crc = crc32_be(crc, &block);
            self.put(&block);
            for content in contents {
                crc = crc32_be(crc, &content);
                self.put(&content);
            }
        }
        if commit {
            let v1 = self.format.checksum == ChecksumVersion::V1;
            let time = Time {
                sec: 1_700_000_000,
                nsec: 5,
            };
            let commit = CommitBlock {
                tid: self.tid,
                time,
                transaction_crc: v1.then_some(crc),
            };
            commit.encode(&mut block, &self.format);
            assert_eq!(CommitBlock::decode(&block, &self.format), Ok(commit));
            self.put(&block);
            self.tid = self.tid.next();
        }
    }
}

/// Makes an image whose log holds what recovery must do, and must not do. Returns it and
/// what the file "big" must hold afterwards.
fn image_to_recover(version: ChecksumVersion, is_64bit: bool) -> Option<(Image, Vec<u8>)> {
    // Checksums v2 and v3 only go with metadata_csum, v1 only without.
    let csum = matches!(version, ChecksumVersion::V2 | ChecksumVersion::V3);
    let features = if csum {
        "metadata_csum"
    } else {
        "^metadata_csum"
    };
    let args = ["-t", "ext4", "-b", "1024", "-O", features, "-J", "size=1"];
    let image = Image::make(&args, 32 * 1024)?;
    let content: Vec<u8> = (0..600 * 1024u32).map(|i| (i / 5) as u8).collect();
    let file = image.file("content", &content);
    image.change(&format!("write {file} big\n"));
    let mut volume = image.read();
    let output = image.debugfs("stat big");
    let start = output.find("Inode: ").expect("an inode") + 7;
    let ino = output[start..].split_whitespace().next().expect("a number");
    let map = volume.map(InodeNo(ino.parse().expect("a number")));
    let homes: Vec<BlockNo> = map
        .iter()
        .flat_map(|e| (0..e.len).map(|i| e.pblk.plus(i.into())))
        .collect();

    let mut log = Log::of(&volume);
    log.sb.set_checksum_version(version);
    log.sb.feature_incompat |= JournalIncompat::REVOKE;
    log.sb
        .feature_incompat
        .set(JournalIncompat::IS_64BIT, is_64bit);
    // The log begins near the end, so that it wraps; the tids wrap too.
    log.sb.start = log.sb.log_end() - 100;
    log.sb.sequence = Tid(u32::MAX - 1);
    let mut expected = content.clone();
    let mut change = |index: usize, seed: u8, magic: bool| {
        let mut block: Vec<u8> = (0..1024u32).map(|i| (i * 7) as u8 ^ seed).collect();
        if magic {
            block[..4].copy_from_slice(&JBD2_MAGIC.to_be_bytes());
        }
        expected[index * 1024..][..1024].copy_from_slice(&block);
        (homes[index], block)
    };
    let format = log.sb.log_format();
    // 550 blocks, many escaped, some of them logged again in the next transaction.
    let first: Vec<_> = (0..550).map(|i| change(i, 1, i % 3 == 0)).collect();
    let second: Vec<_> = (0..10).map(|i| change(i * 10, 2, false)).collect();
    let third = [change(5, 3, true)];
    let (tid, at) = (log.sb.sequence, log.sb.start);
    let mut writer = Writer {
        volume: &mut volume,
        log: &log,
        format,
        at,
        tid,
    };
    writer.transaction(&first, &[], true);
    // Never committed content of blocks 3 and 4: revoked by the second transaction, so
    // that what the file held before stays.
    let revoked = [homes[3], homes[4]];
    writer.transaction(&second, &revoked, true);
    writer.transaction(&third, &[], true);
    writer.transaction(&[(homes[7], vec![0xee; 1024])], &[], false);
    expected[3 * 1024..5 * 1024].copy_from_slice(&content[3 * 1024..5 * 1024]);

    let raw = volume.block_mut(log.blocks[0]);
    log.sb.encode_into(raw);
    volume.sb.feature_incompat |= FeatureIncompat::RECOVER;
    let sb = volume.sb.clone();
    sb.encode_into(&mut volume.bytes[SUPERBLOCK_OFFSET as usize..]);
    image.write(&volume);
    // The log reads back as it was written.
    let ours = read_log(&volume, &Log::of(&volume));
    assert_eq!(ours.len(), 3);
    assert_eq!(ours[&(u32::MAX - 1)].logged, first);
    assert_eq!(ours[&u32::MAX].revoked, revoked);
    Some((image, expected))
}

const VERSIONS: [ChecksumVersion; 4] = [
    ChecksumVersion::None,
    ChecksumVersion::V1,
    ChecksumVersion::V2,
    ChecksumVersion::V3,
];

#[test]
fn e2fsck_replays_what_we_wrote() {
    for version in VERSIONS {
        for is_64bit in [false, true] {
            let Some((image, expected)) = image_to_recover(version, is_64bit) else {
                return;
            };
            let (status, output) = image.e2fsck("-fy");
            assert!(status < 4, "{version:?} {is_64bit}: {output}");
            image.assert_clean(&format!("{version:?} {is_64bit}"));
            let copy = image.file("copy", b"");
            image.debugfs(&format!("dump big {copy}"));
            let found = std::fs::read(&copy).expect("a file");
            let wrong =
                (0..600).find(|i| found[i * 1024..][..1024] != expected[i * 1024..][..1024]);
            assert_eq!(wrong, None, "{version:?}, 64-bit {is_64bit}");
        }
    }
}

#[test]
fn the_kernel_replays_what_we_wrote() {
    for version in VERSIONS {
        for is_64bit in [false, true] {
            let Some((image, expected)) = image_to_recover(version, is_64bit) else {
                return;
            };
            image.while_mounted(&[], |root| {
                let found = std::fs::read(root.join("big")).expect("the file");
                let wrong =
                    (0..600).find(|i| found[i * 1024..][..1024] != expected[i * 1024..][..1024]);
                assert_eq!(wrong, None, "{version:?}, 64-bit {is_64bit}");
            });
        }
    }
}

/// A changed bit anywhere in a record with a checksum is found.
#[test]
fn damage_is_found() {
    for version in [ChecksumVersion::V2, ChecksumVersion::V3] {
        let format = LogFormat {
            block_size: BlockSize::of(1024),
            checksum: version,
            is_64bit: true,
            uuid: [7; 16],
            seed: 0x1234,
        };
        let tid = Tid(9);
        let content = vec![3; 1024];
        let checksum = format.data_checksum(tid, &content);
        let mut descriptor = vec![0; 1024];
        let mut writer = DescriptorWriter::new(&mut descriptor, tid, &format);
        writer.push(BlockNo(0x1_0000_0001), false, checksum);
        writer.push(BlockNo(5), true, checksum);
        writer.finish();
        let mut revoke = vec![0; 1024];
        let mut writer = RevokeWriter::new(&mut revoke, tid, &format);
        writer.push(BlockNo(0x1_0000_0001));
        writer.finish();
        let mut commit = vec![0; 1024];
        let time = Time::default();
        CommitBlock {
            tid,
            time,
            transaction_crc: None,
        }
        .encode(&mut commit, &format);

        let tags: Vec<_> = DescriptorBlock::decode(&descriptor, &format)
            .expect("a descriptor")
            .tags()
            .collect::<Result<_, _>>()
            .expect("tags");
        assert_eq!(tags[0].block, BlockNo(0x1_0000_0001));
        assert!(tags[1].escaped && tags.len() == 2);
        assert!(format.is_intact(&tags[0], tid, &content));
        assert!(!format.is_intact(&tags[0], tid.next(), &content));
        for bit in 0..1024 * 8 {
            let flip = |block: &[u8]| {
                let mut bad = block.to_vec();
                bad[bit / 8] ^= 1 << (bit % 8);
                bad
            };
            assert!(DescriptorBlock::decode(&flip(&descriptor), &format).is_err());
            assert!(RevokeBlock::decode(&flip(&revoke), &format).is_err());
            // A commit block says nothing behind its fields: a power cut may tear it there.
            let is_said = bit / 8 < COMMIT_LAYOUT.size;
            let decoded = CommitBlock::decode(&flip(&commit), &format);
            assert_eq!(decoded.is_err(), is_said, "bit {bit}");
            assert!(!format.is_intact(&tags[0], tid, &flip(&content)));
        }
    }
}

#[test]
fn damaged_superblocks_are_named() {
    let Some(image) = Image::make(&["-t", "ext4", "-b", "1024"], 32 * 1024) else {
        return;
    };
    let volume = image.read();
    let log = Log::of(&volume);
    let raw = volume.block(log.blocks[0]);
    let decode = |change: &dyn Fn(&mut JournalSuperblock)| {
        let (mut sb, mut bad) = (log.sb.clone(), raw.to_vec());
        change(&mut sb);
        sb.encode_into(&mut bad);
        JournalSuperblock::decode(&bad, BlockSize::of(1024))
    };
    assert_eq!(decode(&|_| ()), Ok(log.sb.clone()));
    let length = log.sb.maxlen;
    assert_eq!(
        decode(&|sb| sb.blocksize = 4096),
        Err(Corrupt::JournalBlockSize {
            journal: 4096,
            volume: 1024
        })
    );
    assert_eq!(
        decode(&|sb| sb.first = 0),
        Err(Corrupt::JournalFirst { first: 0, length })
    );
    assert_eq!(
        decode(&|sb| sb.first = length),
        Err(Corrupt::JournalFirst {
            first: length,
            length
        })
    );
    assert_eq!(decode(&|sb| sb.maxlen = 5), Err(Corrupt::JournalLength(5)));
    assert_eq!(
        decode(&|sb| sb.start = length),
        Err(Corrupt::JournalStart {
            start: length,
            first: 1,
            length
        })
    );
    assert_eq!(
        decode(&|sb| sb.feature_incompat = JournalIncompat::from_bits_retain(0x40)),
        Err(Corrupt::JournalIncompat(0x40))
    );
    assert_eq!(
        decode(&|sb| sb.feature_ro_compat = 2),
        Err(Corrupt::JournalRoCompat(2))
    );
    assert_eq!(
        decode(&|sb| sb.feature_incompat |= JournalIncompat::CSUM_V2 | JournalIncompat::CSUM_V3),
        Err(Corrupt::JournalChecksumVersions)
    );
    assert_eq!(
        decode(&|sb| {
            sb.set_checksum_version(ChecksumVersion::V3);
            sb.checksum_type = 1;
        }),
        Err(Corrupt::JournalChecksumType(1))
    );
    assert_eq!(
        decode(&|sb| {
            sb.feature_incompat |= JournalIncompat::FAST_COMMIT;
            sb.num_fc_blks = length;
        }),
        Err(Corrupt::JournalFastCommit {
            fast: length,
            length
        })
    );
    let fast = decode(&|sb| sb.feature_incompat |= JournalIncompat::FAST_COMMIT);
    assert_eq!(fast.expect("a superblock").log_end(), length - 256);
    let mut bad = raw.to_vec();
    let mut sb = log.sb.clone();
    sb.set_checksum_version(ChecksumVersion::V3);
    sb.encode_into(&mut bad);
    bad[0x3ff] ^= 1;
    assert!(matches!(
        JournalSuperblock::decode(&bad, BlockSize::of(1024)),
        Err(Corrupt::JournalSuperChecksum { .. })
    ));
    bad[0] = 0;
    assert_eq!(
        JournalSuperblock::decode(&bad, BlockSize::of(1024)),
        Err(Corrupt::JournalMagic(JBD2_MAGIC & 0x00ff_ffff))
    );
    let file = std::fs::File::open(&image.path).expect("the image");
    let mut first = [0; 4];
    file.read_exact_at(&mut first, log.blocks[0].0 * 1024)
        .expect("the journal");
    assert_eq!(first, JBD2_MAGIC.to_be_bytes());
}
