//! The content of a device as a value: cloning it costs nothing, and changing a clone copies a few
//! kilobytes.
//!
//! The content is a tree of 4 KiB pages with 64 children per node. Images share whatever they have
//! in common, so thousands of crash states that differ in a few blocks fit into the memory of one.
//! A page that was never written does not exist and reads as zeros.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::sparse;
use stetfs_format::BlockSize;
use stetfs_format::width::{u64_as_usize, usize_as_u64};

/// Bytes of a page.
const PAGE: usize = 4096;
const PAGES: BlockSize = BlockSize::of(PAGE);
/// Children of a node.
const FAN: usize = 64;

type Page = [u8; PAGE];

/// A subtree. All leaves are at the same depth.
#[derive(Clone)]
enum Tree {
    Empty,
    Page(Arc<Page>),
    Node(Arc<[Tree; FAN]>),
}

const EMPTY_NODE: [Tree; FAN] = [const { Tree::Empty }; FAN];

/// Content of a fixed size in bytes, all zero at first.
#[derive(Clone)]
pub struct Image {
    root: Tree,
    /// Nodes between the root and a page.
    depth: u32,
    size: u64,
}

impl Image {
    /// An image of `size` zero bytes.
    pub fn new(size: u64) -> Self {
        let pages = PAGES.blocks_for(size);
        let mut depth = 0;
        let mut reach: u64 = 1;
        while reach < pages {
            reach = reach.saturating_mul(usize_as_u64(FAN));
            depth += 1;
        }
        Self {
            root: Tree::Empty,
            depth,
            size,
        }
    }

    /// An image with a copy of `bytes`.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        let mut image = Self::new(usize_as_u64(bytes.len()));
        for (i, page) in bytes.chunks(PAGE).enumerate() {
            if !sparse::is_zero(page) {
                image.write(usize_as_u64(i * PAGE), page);
            }
        }
        image
    }

    /// Reads the content of a file, in whole sectors of 512 bytes; drops a shorter rest at the end.
    pub fn from_file(path: &Path) -> io::Result<Self> {
        let mut image = Self::new(std::fs::metadata(path)?.len());
        image.size = sparse::load(path, PAGE, |offset, bytes| {
            if !sparse::is_zero(bytes) {
                image.write(offset, bytes);
            }
        })?;
        Ok(image)
    }

    /// Writes the content to a file, with holes where nothing was written.
    pub fn to_file(&self, path: &Path) -> io::Result<()> {
        let mut pages = Vec::new();
        self.root.collect_pages(self.depth, 0, &mut pages);
        let pieces = pages.into_iter().map(|(n, page)| {
            let offset = PAGES.offset_of(n);
            let len = PAGE.min(u64_as_usize(self.size - offset));
            (offset, &page[..len])
        });
        sparse::store(path, self.size, pieces)
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// All bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; u64_as_usize(self.size)];
        self.read(0, &mut bytes);
        bytes
    }

    /// Copies a range out. Panics if it reaches beyond the end.
    pub fn read(&self, offset: u64, out: &mut [u8]) {
        self.assert_inside(offset, usize_as_u64(out.len()));
        for piece in PAGES.pieces(offset, out.len()) {
            let out = &mut out[piece.in_range()];
            match self.root.page(self.depth, piece.block) {
                Some(page) => out.copy_from_slice(&page[piece.in_block()]),
                None => out.fill(0),
            }
        }
    }

    /// Copies `bytes` in. Panics if the range reaches beyond the end.
    pub fn write(&mut self, offset: u64, bytes: &[u8]) {
        self.assert_inside(offset, usize_as_u64(bytes.len()));
        for piece in PAGES.pieces(offset, bytes.len()) {
            let page = self.root.page_mut(self.depth, piece.block);
            page[piece.in_block()].copy_from_slice(&bytes[piece.in_range()]);
        }
    }

    /// Sets every byte of a range. Panics if it reaches beyond the end.
    pub fn fill(&mut self, offset: u64, len: u64, byte: u8) {
        self.assert_inside(offset, len);
        for piece in PAGES.pieces(offset, u64_as_usize(len)) {
            if byte == 0 && piece.len == PAGE {
                self.root.clear_page(self.depth, piece.block);
            } else if byte != 0 || self.root.page(self.depth, piece.block).is_some() {
                self.root.page_mut(self.depth, piece.block)[piece.in_block()].fill(byte);
            }
        }
    }

    /// Returns the byte offsets of the 4 KiB pages that the two images do not share; such pages may
    /// still have equal content. The time is proportional to what they do not share. Panics if the
    /// sizes differ.
    pub fn unshared_pages(&self, other: &Self) -> Vec<u64> {
        assert_eq!(self.size, other.size, "images of two devices");
        let mut found = Vec::new();
        self.root.compare(&other.root, self.depth, 0, &mut found);
        let offsets = found.into_iter().map(|page| PAGES.offset_of(page));
        offsets.collect()
    }

    fn assert_inside(&self, offset: u64, len: u64) {
        let end = offset.checked_add(len);
        assert!(
            end.is_some_and(|end| end <= self.size),
            "{len} bytes at {offset} are beyond the {} bytes of the image",
            self.size
        );
    }
}

/// A file that holds one image after another. Of each, only those pages are written that it does
/// not share with the last one.
#[derive(Debug)]
pub struct ImageFile {
    path: PathBuf,
    /// What the file holds; `None`: that is not known.
    holds: Option<Image>,
}

impl ImageFile {
    /// A file at this path, which need not exist.
    pub fn new(path: PathBuf) -> Self {
        Self { path, holds: None }
    }

    /// Makes the file hold this image. Nobody else may have changed it since the last one.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn show(&mut self, image: &Image) -> io::Result<&Path> {
        // What an error leaves is not known.
        let last = self.holds.take().filter(|last| last.size == image.size);
        match last {
            Some(last) => {
                let file = File::options().write(true).open(&self.path)?;
                let mut page = [0; PAGE];
                for offset in image.unshared_pages(&last) {
                    let len = PAGE.min(u64_as_usize(image.size - offset));
                    image.read(offset, &mut page[..len]);
                    file.write_all_at(&page[..len], offset)?;
                }
            }
            None => image.to_file(&self.path)?,
        }
        self.holds = Some(image.clone());
        Ok(&self.path)
    }
}

/// Two images are equal if all their bytes are.
impl PartialEq for Image {
    fn eq(&self, other: &Self) -> bool {
        const ZERO: Page = [0; PAGE];
        self.size == other.size
            && self.unshared_pages(other).into_iter().all(|offset| {
                let page = PAGES.block_of(offset);
                let [mine, theirs] =
                    [self, other].map(|i| i.root.page(i.depth, page).unwrap_or(&ZERO));
                mine == theirs
            })
    }
}

impl Eq for Image {}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Image({} bytes)", self.size)
    }
}

impl Tree {
    /// Which child of a node with `depth` levels below it leads to the page.
    fn child(depth: u32, page: u64) -> usize {
        u64_as_usize(page >> (6 * (depth - 1))) % FAN
    }

    fn page(&self, depth: u32, page: u64) -> Option<&Page> {
        match self {
            Self::Empty => None,
            Self::Page(bytes) => Some(bytes),
            Self::Node(children) => children[Self::child(depth, page)].page(depth - 1, page),
        }
    }

    fn page_mut(&mut self, depth: u32, page: u64) -> &mut Page {
        if let Self::Empty = self {
            *self = if depth == 0 {
                Self::Page(Arc::new([0; PAGE]))
            } else {
                Self::Node(Arc::new(EMPTY_NODE))
            };
        }
        match self {
            Self::Page(bytes) => Arc::make_mut(bytes),
            Self::Node(children) => {
                Arc::make_mut(children)[Self::child(depth, page)].page_mut(depth - 1, page)
            }
            Self::Empty => unreachable!("it was filled above"),
        }
    }

    fn clear_page(&mut self, depth: u32, page: u64) {
        match self {
            Self::Empty => {}
            Self::Page(_) => *self = Self::Empty,
            Self::Node(children) => {
                let i = Self::child(depth, page);
                if children[i].page(depth - 1, page).is_some() {
                    Arc::make_mut(children)[i].clear_page(depth - 1, page);
                }
            }
        }
    }

    /// Appends every page with its number, in ascending order.
    fn collect_pages<'a>(&'a self, depth: u32, first: u64, into: &mut Vec<(u64, &'a Page)>) {
        match self {
            Self::Empty => {}
            Self::Page(bytes) => into.push((first, bytes)),
            Self::Node(children) => {
                for (i, child) in children.iter().enumerate() {
                    child.collect_pages(depth - 1, Self::first_of(depth, first, i), into);
                }
            }
        }
    }

    /// The number of the first page below child `i` of a node whose own first page is `first`.
    fn first_of(depth: u32, first: u64, i: usize) -> u64 {
        first + (usize_as_u64(i) << (6 * (depth - 1)))
    }

    fn compare(&self, other: &Self, depth: u32, first: u64, found: &mut Vec<u64>) {
        match (self, other) {
            (Self::Empty, Self::Empty) => {}
            (Self::Page(a), Self::Page(b)) if Arc::ptr_eq(a, b) => {}
            (Self::Node(a), Self::Node(b)) if Arc::ptr_eq(a, b) => {}
            (Self::Node(a), Self::Node(b)) => {
                for (i, (a, b)) in a.iter().zip(b.iter()).enumerate() {
                    a.compare(b, depth - 1, Self::first_of(depth, first, i), found);
                }
            }
            (one, Self::Empty) | (Self::Empty, one) => {
                let mut pages = Vec::new();
                one.collect_pages(depth, first, &mut pages);
                found.extend(pages.into_iter().map(|(n, _)| n));
            }
            _ => found.push(first),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 70 * PAGE as u64 * FAN as u64 / 8 + 1536;

    #[test]
    fn clones_do_not_see_each_other() {
        let mut a = Image::new(SIZE);
        a.write(4090, &[1; 20]);
        let b = a.clone();
        a.write(4096, &[2; 4]);
        let mut bytes = [0; 20];
        b.read(4090, &mut bytes);
        assert_eq!(bytes, [1; 20]);
        assert_eq!(a.unshared_pages(&b), [4096]);
        assert_ne!(a, b);
        a.write(4096, &[1; 4]);
        assert_eq!(a.unshared_pages(&b), [4096]);
        assert_eq!(a, b);
    }

    #[test]
    fn a_written_page_of_zeros_equals_none() {
        let mut a = Image::new(SIZE);
        a.write(SIZE - 1536, &[0; 1536]);
        assert_eq!(a, Image::new(SIZE));
        a.fill(0, SIZE, 0);
        assert_eq!(a.unshared_pages(&Image::new(SIZE)), [SIZE - 1536]);
    }

    #[test]
    #[should_panic(expected = "beyond")]
    fn the_end_is_the_end() {
        Image::new(8192).write(8191, &[1, 2]);
    }

    #[test]
    fn files_keep_content_and_holes() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("image");
        let mut a = Image::new(64 << 20);
        for offset in [0, 5000, 1 << 20, (64 << 20) - 512] {
            a.write(offset, &[9; 512]);
        }
        a.to_file(&path).expect("a file");
        assert_eq!(std::fs::metadata(&path).expect("it exists").len(), 64 << 20);
        assert_eq!(Image::from_file(&path).expect("the file"), a);
    }

    #[test]
    fn a_file_holds_one_image_after_another() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut file = ImageFile::new(dir.path().join("image"));
        let mut image = Image::new(99_840);
        let mut differs = Image::new(8192);
        differs.write(0, b"of another size");
        for step in 0..6u8 {
            match step {
                3 => image.fill(0, 9000, 0),
                n => image.write(u64::from(n) * 16_000, &[n + 1; 7000]),
            }
            for shown in [&image, &image.clone()] {
                let path = file.show(shown).expect("written").to_owned();
                assert_eq!(Image::from_file(&path).expect("read"), *shown, "{step}");
            }
            if step == 4 {
                let path = file.show(&differs).expect("written").to_owned();
                assert_eq!(Image::from_file(&path).expect("read"), differs);
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Write(u64, Vec<u8>),
        Fill(u64, u64, u8),
        Clone,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (0..SIZE, prop::collection::vec(any::<u8>(), 1..9000))
                .prop_map(|(o, b)| Step::Write(o, b)),
            2 => (0..SIZE, 1..20_000u64, prop_oneof![Just(0u8), any::<u8>()])
                .prop_map(|(o, l, b)| Step::Fill(o, l, b)),
            1 => Just(Step::Clone),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The image behaves like a plain vector, and clones stay as they were.
        #[test]
        fn behaves_like_a_vector(steps in prop::collection::vec(step(), 1..40)) {
            let mut image = Image::new(SIZE);
            let mut model = vec![0u8; SIZE as usize];
            let mut clones = Vec::new();
            for step in steps {
                match step {
                    Step::Write(offset, bytes) => {
                        let n = bytes.len().min((SIZE - offset) as usize);
                        image.write(offset, &bytes[..n]);
                        model[offset as usize..][..n].copy_from_slice(&bytes[..n]);
                    }
                    Step::Fill(offset, len, byte) => {
                        let n = len.min(SIZE - offset);
                        image.fill(offset, n, byte);
                        model[offset as usize..][..n as usize].fill(byte);
                    }
                    Step::Clone => clones.push((image.clone(), model.clone())),
                }
            }
            prop_assert_eq!(image.to_bytes(), model.clone());
            prop_assert_eq!(&Image::from_bytes(&model), &image);
            for (clone, as_it_was) in clones {
                prop_assert_eq!(clone.to_bytes(), as_it_was);
            }
        }
    }
}
