//! Directories and hash trees of real images, judged by debugfs; what we write, by e2fsck.

mod image;

use std::fmt::Write as _;

use image::{Image, Volume, on_every_kind};
use stetfs_format::dirent::{self, NewEntry};
use stetfs_format::htree::{looks_like_node, root_limit};
use stetfs_format::{
    BlockNo, Corrupt, DirBlock, DxBlock, DxBlockMut, DxEntry, FileType, HashVersion, Hasher,
    InodeFlags, InodeNo, LBlock,
};

fn named(image: &Image, name: &str) -> InodeNo {
    let output = image.debugfs(&format!("stat {name}"));
    let start = output.find("Inode: ").expect("an inode") + 7;
    let number = output[start..].split_whitespace().next().expect("a number");
    InodeNo(number.parse().expect("a number"))
}

fn hasher(volume: &Volume, version: HashVersion) -> Hasher {
    let sb = &volume.sb;
    Hasher {
        version,
        unsigned: sb.unsigned_hash(),
        seed: sb.hash_seed,
    }
}

/// The leaves of a directory: all its blocks, or those that its hash tree reaches, with
/// the lowest hash of each. Checks everything on the way.
fn leaves(volume: &Volume, dir: InodeNo) -> (Vec<(BlockNo, u32)>, Option<HashVersion>) {
    let (inode, sb) = (volume.inode(dir), &volume.sb);
    let blocks = volume.dir_blocks(dir);
    if !inode.flags.contains(InodeFlags::INDEX) {
        return (blocks.into_iter().map(|block| (block, 0)).collect(), None);
    }
    let seed = inode.csum_seed(dir, sb);
    let (root, info) = DxBlock::root(volume.block(blocks[0]), sb).expect("a root");
    root.check_checksum(seed, sb).expect("the root's checksum");
    root.check_order().expect("the root's order");
    let mut level: Vec<DxEntry> = root.entries().collect();
    for _ in 0..info.indirect_levels {
        let mut below = Vec::new();
        for entry in level {
            let raw = volume.block(blocks[entry.block.0 as usize]);
            assert!(looks_like_node(raw));
            let node = DxBlock::node(raw, sb).expect("a node");
            node.check_checksum(seed, sb).expect("a node's checksum");
            node.check_order().expect("a node's order");
            // The first pair's hash is that of the pair above it.
            let first = DxEntry {
                hash: entry.hash,
                block: node.entry(0).block,
            };
            below.push(first);
            below.extend(node.entries().skip(1));
        }
        level = below;
    }
    let leaves = level
        .iter()
        .map(|entry| (blocks[entry.block.0 as usize], entry.hash));
    (leaves.collect(), Some(info.hash_version))
}

#[test]
fn entries_are_what_debugfs_says() {
    on_every_kind(|_, image| {
        let volume = image.read();
        for name in ["/", "d", "lost+found"] {
            let dir = named(image, name);
            let seed = volume.inode(dir).csum_seed(dir, &volume.sb);
            let (leaves, version) = leaves(&volume, dir);
            let mut ours = Vec::new();
            for (block, _) in &leaves {
                let leaf = DirBlock::decode(volume.block(*block), &volume.sb).expect("a block");
                leaf.check_checksum(seed).expect("a checksum");
                for entry in leaf.entries() {
                    let entry = entry.expect("an entry");
                    if entry.is_free() {
                        continue;
                    }
                    assert_eq!(dirent::check_name(entry.name, 0), Ok(()));
                    assert_eq!(leaf.find(entry.name), Ok(Some(entry)));
                    let inode = volume.inode(entry.inode);
                    assert_eq!(entry.file_type, inode.file_type());
                    ours.push((
                        entry.inode.0,
                        String::from_utf8_lossy(entry.name).into_owned(),
                    ));
                }
                assert_eq!(leaf.find(b"no such name"), Ok(None));
            }
            let listing = image.debugfs(&format!("ls -p <{dir}>"));
            let mut theirs: Vec<(u32, String)> = listing
                .lines()
                .filter_map(|line| {
                    let mut parts = line.strip_prefix('/')?.split('/');
                    let ino = parts.next()?.parse().ok().filter(|ino| *ino != 0)?;
                    Some((ino, parts.nth(3)?.to_owned()))
                })
                .collect();
            if version.is_some() {
                // In an indexed directory, "." and ".." stand in the root.
                theirs.retain(|(_, name)| name != "." && name != "..");
            }
            // debugfs lists by block, we by hash.
            ours.sort();
            theirs.sort();
            assert_eq!(ours, theirs, "{name}");
        }
    });
}

#[test]
fn hash_trees_are_what_debugfs_says() {
    let (mut trees, mut nodes) = (0, 0);
    on_every_kind_counted(&mut |image| {
        let volume = image.read();
        let dir = named(image, "d");
        let (leaves, version) = leaves(&volume, dir);
        let Some(version) = version else { return };
        trees += 1;
        let dump = image.debugfs(&format!("htree <{dir}>"));
        if dump.contains("Indirect levels: 1") {
            nodes += 1;
        }
        let hasher = hasher(&volume, version);
        for (index, (block, lowest)) in leaves.iter().enumerate() {
            assert!(dump.contains(&format!("Hash 0x{lowest:08x}, block ")));
            let above = leaves
                .get(index + 1)
                .map_or(u32::MAX, |(_, lowest)| *lowest);
            let leaf = DirBlock::decode(volume.block(*block), &volume.sb).expect("a block");
            for entry in leaf.entries().map(|entry| entry.expect("an entry")) {
                if entry.is_free() {
                    continue;
                }
                let hash = hasher.hash(entry.name);
                assert!((*lowest & !1..=above).contains(&hash.major));
                // As debugfs prints an entry: inode, hash, length, name.
                let name = String::from_utf8_lossy(entry.name);
                let line = format!(
                    "{} 0x{:08x}-{:08x} ({}) {name}",
                    entry.inode, hash.major, hash.minor, entry.rec_len
                );
                assert!(dump.contains(&line), "{line}");
            }
        }
    });
    assert!(trees > 10 && nodes > 0, "{trees} trees, {nodes} with nodes");
}

fn on_every_kind_counted(test: &mut dyn FnMut(&Image)) {
    let test = std::cell::RefCell::new(test);
    on_every_kind(|_, image| (test.borrow_mut())(image));
}

#[test]
fn hashes_are_what_debugfs_says() {
    let Some(image) = Image::make(&["-t", "ext4"], 8 * 1024) else {
        return;
    };
    let names: Vec<String> = (1..=60)
        .map(|length| {
            "aZ9-._~"
                .chars()
                .cycle()
                .skip(length % 2)
                .take(length)
                .collect()
        })
        .chain((1..=255).step_by(23).map(|length| "x".repeat(length)))
        .chain([
            "h\u{e4}\u{df}lich".to_owned(),
            "\u{2603}\u{ff}\u{80}".to_owned(),
        ])
        .collect();
    let seed_text = "3372c4c2-1e47-422c-b3c0-03c4fd4ef689";
    let bytes: Vec<u8> = (0..16)
        .map(|i| {
            let hex = seed_text.replace('-', "");
            u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).expect("a digit")
        })
        .collect();
    let word = |i: usize| u32::from_le_bytes(bytes[4 * i..4 * i + 4].try_into().expect("4 bytes"));
    let seeded = [word(0), word(1), word(2), word(3)];
    for version in [HashVersion::Legacy, HashVersion::HalfMd4, HashVersion::Tea] {
        // debugfs names only the signed hashes; the unsigned ones follow by number.
        for (unsigned, code) in [(false, version.code()), (true, version.code() + 3)] {
            for (seed, option) in [
                ([0; 4], String::new()),
                (seeded, format!("-s {seed_text} ")),
            ] {
                let mut script = String::new();
                for name in &names {
                    writeln!(script, "dx_hash -h {code} {option}{name}").expect("a string");
                }
                let output = image.debugfs_all(&script);
                let hasher = Hasher {
                    version,
                    unsigned,
                    seed,
                };
                for name in &names {
                    let hash = hasher.hash(name.as_bytes());
                    let (major, minor) = (hash.major, hash.minor);
                    let line = format!("Hash of {name} is {major:#x} (minor {minor:#x})");
                    assert!(output.contains(&line), "{code} {option}: {line}");
                }
            }
        }
    }
}

/// Puts entries in and takes them out.
#[test]
fn e2fsck_accepts_entries_that_we_wrote() {
    for args in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext4", "-b", "4096"],
        &["-t", "ext3", "-b", "2048"],
        &["-t", "ext2", "-b", "1024", "-O", "^filetype"],
    ] {
        let Some(image) = Image::make(args, 16 * 1024) else {
            continue;
        };
        image.change(
            "mkdir d\ncd d\nwrite /dev/null one\nwrite /dev/null two\nwrite /dev/null three\n",
        );
        let mut volume = image.read();
        let (dir, sb) = (named(&image, "d"), volume.sb.clone());
        let seed = volume.inode(dir).csum_seed(dir, &sb);
        let block = volume.dir_blocks(dir)[0];
        let old = volume.block(block).to_vec();
        let view = DirBlock::decode(&old, &sb).expect("a block");
        let (one, two, three) = (
            view.find(b"one").expect("entries").expect("one"),
            view.find(b"two").expect("entries").expect("two"),
            view.find(b"three").expect("entries").expect("three"),
        );
        let mut new = old.clone();
        // "two" becomes a long name, "three" goes to the end, "one" is moved to "two".
        let long = vec![b'l'; 255];
        let mut changed = vec![dirent::remove(&mut new, &two)];
        for (name, ino) in [(&long[..], two.inode), (b"x", three.inode)] {
            let view = DirBlock::decode(&new, &sb).expect("a block");
            let slot = view.find_room(name.len()).expect("entries").expect("room");
            changed.push(dirent::insert(
                &mut new,
                slot,
                ino,
                FileType::Regular,
                name,
                &sb,
            ));
        }
        let view = new.clone();
        let view = DirBlock::decode(&view, &sb).expect("a block");
        let three = view.find(b"three").expect("entries").expect("three");
        changed.push(dirent::remove(&mut new, &three));
        changed.push(dirent::set_inode(
            &mut new,
            one.offset,
            one.inode,
            FileType::Regular,
            &sb,
        ));
        changed.extend(dirent::write_checksum(&mut new, seed, &sb));

        // The returned ranges hold all that changed.
        let mut replayed = old.clone();
        for range in changed {
            replayed[range.clone()].copy_from_slice(&new[range]);
        }
        assert_eq!(replayed, new);
        assert!(
            DirBlock::decode(&new, &sb)
                .expect("a block")
                .check_checksum(seed)
                .is_ok()
        );

        volume.block_mut(block).copy_from_slice(&new);
        image.write(&volume);
        image.assert_clean(&format!("{args:?}"));
        let listing = image.debugfs("ls -p d");
        let names: Vec<&str> = listing
            .lines()
            .filter_map(|line| line.split('/').nth(5))
            .collect();
        let long = String::from_utf8(long).expect("letters");
        let mut expected = vec![".", "..", "one", "x", &long];
        let mut found = names.clone();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
    }
}

/// We build a hash tree over the blocks of a directory that e2fsck had indexed: the same names,
/// other leaves, a level of nodes.
#[test]
fn e2fsck_accepts_a_hash_tree_that_we_wrote() {
    for args in [
        &["-t", "ext4", "-b", "1024"][..],
        &["-t", "ext3", "-b", "1024"],
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"],
    ] {
        let Some(image) = Image::make(args, 96 * 1024) else {
            continue;
        };
        image.populate();
        let mut volume = image.read();
        let (dir, sb) = (named(&image, "d"), volume.sb.clone());
        let seed = volume.inode(dir).csum_seed(dir, &sb);
        let blocks = volume.dir_blocks(dir);
        let (leaves, version) = leaves(&volume, dir);
        let version = version.expect("an index");
        let hasher = hasher(&volume, version);

        let mut names = Vec::new();
        for (block, _) in &leaves {
            let leaf = DirBlock::decode(volume.block(*block), &sb).expect("a block");
            for entry in leaf.entries().map(|entry| entry.expect("an entry")) {
                if !entry.is_free() {
                    let name = entry.name.to_vec();
                    names.push((hasher.hash(&name), entry.inode, entry.file_type, name));
                }
            }
        }
        names.sort_by_key(|(hash, ..)| *hash);
        // Block 0 is the root, 1 and 2 are nodes, the rest are full leaves.
        let mut pairs: Vec<DxEntry> = Vec::new();
        let mut rest = &names[..];
        for (index, block) in blocks.iter().enumerate().skip(3) {
            let mut free = dirent::body_size(&sb);
            let fits = |(_, _, _, name): &&(_, _, _, Vec<u8>)| {
                let size = dirent::rec_len(name.len());
                free = free.saturating_sub(size);
                free > 0
            };
            let here;
            (here, rest) = rest.split_at(rest.iter().take_while(fits).count());
            let entries = here.iter().map(|(_, inode, file_type, name)| NewEntry {
                inode: *inode,
                file_type: *file_type,
                name,
            });
            let raw = volume.block_mut(*block);
            dirent::fill(raw, entries, &sb);
            dirent::write_checksum(raw, seed, &sb);
            // Blocks that are left over become empty leaves at the end.
            let beyond = 0xffff_f000 + 2 * index as u32;
            let hash = here.first().map_or(beyond, |(hash, ..)| hash.major);
            pairs.push(DxEntry {
                hash,
                block: LBlock(index as u32),
            });
        }
        assert!(rest.is_empty(), "names are left over");

        let mut root_raw = vec![0xaa; sb.block_size()];
        let (mut left_raw, mut right_raw) = (root_raw.clone(), root_raw.clone());
        let parent = InodeNo(2);
        let mut root =
            DxBlockMut::init_root(&mut root_raw, dir, parent, version, pairs[0].block, &sb);
        let (first, rest) = pairs.split_at(root.limit().into());
        for (index, pair) in first.iter().enumerate().skip(1) {
            root.insert(index as u16, *pair);
        }
        let mut left = DxBlockMut::init_node(&mut left_raw, LBlock(0), &sb);
        root.push_down(&mut left, LBlock(1));
        let mut right = DxBlockMut::init_node(&mut right_raw, LBlock(0), &sb);
        let middle = left.count() / 2;
        let hash = left.split_off(middle, &mut right);
        for pair in rest {
            right.insert(right.count(), *pair);
        }
        root.insert(
            1,
            DxEntry {
                hash,
                block: LBlock(2),
            },
        );
        for block in [&mut root, &mut left, &mut right] {
            block.write_checksum(seed, &sb);
        }
        for (index, raw) in [&root_raw, &left_raw, &right_raw].into_iter().enumerate() {
            volume.block_mut(blocks[index]).copy_from_slice(raw);
        }
        assert_eq!(
            DxBlock::root(&root_raw, &sb).expect("a root").0.dotdot(),
            parent
        );
        image.write(&volume);
        image.assert_clean(&format!("{args:?}"));

        let (again, _) = self::leaves(&image.read(), dir);
        let ours: Vec<BlockNo> = pairs
            .iter()
            .map(|pair| blocks[pair.block.0 as usize])
            .collect();
        assert_eq!(
            again
                .into_iter()
                .map(|(block, _)| block)
                .collect::<Vec<_>>(),
            ours
        );
        let volume = image.read();
        for (hash, _, _, name) in &names {
            let (root, _) = DxBlock::root(&root_raw, &sb).expect("a root");
            let node = root.entry(root.search(hash.major)).block.0 as usize;
            let node = DxBlock::node([&left_raw, &right_raw][node - 1], &sb).expect("a node");
            let leaf = blocks[node.entry(node.search(hash.major)).block.0 as usize];
            let leaf = DirBlock::decode(volume.block(leaf), &sb).expect("a block");
            assert!(leaf.find(name).expect("entries").is_some());
        }
    }
}

#[test]
fn damage_is_named() {
    let Some(image) = Image::make(&["-t", "ext4", "-b", "1024"], 8 * 1024) else {
        return;
    };
    let sb = image.read().sb;
    let mut raw = vec![0; 1024];
    dirent::init_dot_dotdot(&mut raw, InodeNo(2), InodeNo(2), &sb);
    let check = |raw: &[u8]| -> Result<usize, Corrupt> {
        let block = DirBlock::decode(raw, &sb)?;
        block.check_entries(true)?;
        Ok(block.entries().count())
    };
    assert_eq!(check(&raw), Ok(2));
    let damaged = |offset: usize, bytes: &[u8]| {
        let mut bad = raw.clone();
        bad[offset..offset + bytes.len()].copy_from_slice(bytes);
        check(&bad)
    };
    let name_len = 1;
    let rec_len = |offset, rec_len, name_len| {
        Err(Corrupt::DirentRecLen {
            offset,
            rec_len,
            name_len,
        })
    };
    assert_eq!(damaged(4, &[0, 0]), rec_len(0, 0, name_len));
    assert_eq!(damaged(4, &[13, 0]), rec_len(0, 13, name_len));
    assert_eq!(damaged(4, &[8, 0]), rec_len(0, 8, name_len));
    assert_eq!(damaged(6, &[200]), rec_len(0, 12, 200));
    assert_eq!(
        damaged(16, &[0xf8, 3]),
        Err(Corrupt::DirentOverrun { offset: 12 })
    );
    assert_eq!(
        damaged(16, &[0xe4, 3]),
        Err(Corrupt::DirentOverrun { offset: 12 })
    );
    assert_eq!(
        damaged(2, &[1]),
        Err(Corrupt::DirentInode {
            offset: 0,
            ino: InodeNo(0x1_0002)
        })
    );
    assert_eq!(
        damaged(6, &[0]),
        Err(Corrupt::DirentNameEmpty { offset: 0 })
    );
    assert_eq!(damaged(8, b"/"), Err(Corrupt::DirentName { offset: 0 }));
    assert_eq!(damaged(20, b"/"), Err(Corrupt::DirentName { offset: 12 }));
    assert_eq!(damaged(21, &[0]), Err(Corrupt::DirentName { offset: 12 }));
    // ".." for "." and "." for "..": each where the other belongs.
    assert_eq!(
        damaged(6, &[2, 2, b'.', b'.']),
        Err(Corrupt::DirentDots { offset: 0 })
    );
    assert_eq!(damaged(18, &[1]), Err(Corrupt::DirentDots { offset: 12 }));
    let whole = DirBlock::decode(&raw, &sb).unwrap();
    assert_eq!(
        whole.check_entries(false),
        Err(Corrupt::DirentDots { offset: 0 })
    );
    assert_eq!(damaged(1024 - 5, &[0]), Err(Corrupt::DirentTail));
    assert!(root_limit(&sb) > 100);
}
