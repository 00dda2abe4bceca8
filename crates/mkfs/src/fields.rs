//! Writes records by the names of their fields.

use stetfs_format::layout::Layout;
use stetfs_format::width::{high32, low32};

/// Writes the fields of a record by the names in its layout. Those that are not written stay zero.
pub(crate) struct Fields<'a> {
    layout: &'static Layout,
    raw: &'a mut [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn of(layout: &'static Layout, raw: &'a mut [u8]) -> Self {
        Self { layout, raw }
    }

    fn place(&mut self, name: &str) -> &mut [u8] {
        let found = self.layout.fields.iter().find(|field| field.name == name);
        let field = found.unwrap_or_else(|| panic!("{} has no {name}", self.layout.name));
        &mut self.raw[field.offset..field.offset + field.size]
    }

    /// Writes bytes as they are.
    pub(crate) fn bytes(mut self, name: &str, bytes: &[u8]) -> Self {
        self.place(name).copy_from_slice(bytes);
        self
    }

    /// Writes a number in ext4's order.
    pub(crate) fn little(mut self, name: &str, value: u64) -> Self {
        let place = self.place(name);
        let bytes = value.to_le_bytes();
        assert!(
            bytes[place.len()..].iter().all(|b| *b == 0),
            "{name} is {value}"
        );
        place.copy_from_slice(&bytes[..place.len()]);
        self
    }

    /// Writes a number in JBD2's order.
    pub(crate) fn big(mut self, name: &str, value: u64) -> Self {
        let place = self.place(name);
        let bytes = value.to_be_bytes();
        let (above, low) = bytes.split_at(bytes.len() - place.len());
        assert!(above.iter().all(|b| *b == 0), "{name} is {value}");
        place.copy_from_slice(low);
        self
    }

    /// Writes a number in two halves, in ext4's order.
    pub(crate) fn halves(self, low: &str, high: &str, value: u64) -> Self {
        self.little(low, low32(value).into())
            .little(high, high32(value).into())
    }
}
