//! How many rows there are, and how many transactions of each kind were run.

use serde::Serialize;

/// Districts of a warehouse.
pub(crate) const DISTRICTS: u32 = 10;

/// How many rows there are (clause 1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Cardinality {
    /// Warehouses.
    pub warehouses: u32,
    /// Items, each in stock in each warehouse.
    pub items: u32,
    /// Customers of a district.
    pub customers: u32,
    /// Orders of a district, one a customer.
    pub orders: u32,
}

impl Cardinality {
    /// The specification's numbers, for this many warehouses.
    pub const fn of(warehouses: u32) -> Self {
        Self {
            warehouses,
            items: 100_000,
            customers: 3_000,
            orders: 3_000,
        }
    }

    /// Scales the specification's numbers. A factor below 1 lowers items, customers and orders; a
    /// factor of 1 or more is the number of warehouses.
    pub fn scaled(scale: f64) -> Self {
        let whole = Self::of((scale.round() as u32).max(1));
        let part = scale.min(1.0);
        let some = |n: u32, least: u32| ((f64::from(n) * part) as u32).max(least);
        // Less than twenty orders a district would leave the Stock-Level transaction without its
        // work.
        Self {
            items: some(whole.items, 100),
            customers: some(whole.customers, 30),
            orders: some(whole.orders, 30),
            ..whole
        }
    }

    /// How many last names there are.
    pub(super) fn names(&self) -> u64 {
        u64::from(self.customers.min(1000))
    }

    /// Orders of a district that are delivered in the beginning: seven in ten.
    pub(super) fn delivered(&self) -> u32 {
        self.orders * 7 / 10
    }
}

/// Counts of the transactions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Outcome {
    /// New-Order, those rolled back included.
    pub new_orders: u64,
    /// New-Orders rolled back.
    pub rolled_back: u64,
    /// Payment.
    pub payments: u64,
    /// Order-Status.
    pub order_statuses: u64,
    /// Delivery.
    pub deliveries: u64,
    /// Stock-Level.
    pub stock_levels: u64,
    /// Lines ordered from another warehouse.
    pub remote_lines: u64,
    /// Payments by a customer of another warehouse.
    pub remote_payments: u64,
    /// Customers named by their last name, and those named in any way.
    pub by_name: [u64; 2],
}

/// A kind of transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    NewOrder,
    Payment,
    OrderStatus,
    Delivery,
    StockLevel,
}
