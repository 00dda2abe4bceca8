//! TPC-C's nine tables in SQLite, and their first content (clauses 1.3 and 4.3.3).
//!
//! Money is in cents, taxes and discounts in hundredths of a percent, dates in seconds since 1970:
//! integers, so that sums are exact. Tables are SQLite's ordinary ones, with a row number, and an
//! index for the primary key; customers are found by last name, and orders by customer, through one
//! more each.

use anyhow::Result;
use rusqlite::{Connection, params};

use super::random::{
    A_LAST, a_string, item_data, last_name, n_string, nurand, permutation, uniform, zip,
};
use super::scale::{Cardinality, DISTRICTS};
use stetfs_testkit::rng::Rng;

const TABLES: &str = "
CREATE TABLE warehouse (
    w_id INTEGER PRIMARY KEY, w_name TEXT, w_street_1 TEXT, w_street_2 TEXT, w_city TEXT, w_state \
    TEXT, w_zip TEXT,
    w_tax INTEGER, w_ytd INTEGER);
CREATE TABLE district (
    d_id INTEGER, d_w_id INTEGER, d_name TEXT, d_street_1 TEXT, d_street_2 TEXT, d_city TEXT, \
    d_state TEXT, d_zip TEXT,
    d_tax INTEGER, d_ytd INTEGER, d_next_o_id INTEGER, PRIMARY KEY (d_w_id, d_id));
CREATE TABLE customer (
    c_id INTEGER, c_d_id INTEGER, c_w_id INTEGER, c_first TEXT, c_middle TEXT, c_last TEXT, \
    c_street_1 TEXT, c_street_2 TEXT,
    c_city TEXT, c_state TEXT, c_zip TEXT, c_phone TEXT, c_since INTEGER, c_credit TEXT, \
    c_credit_lim INTEGER,
    c_discount INTEGER, c_balance INTEGER, c_ytd_payment INTEGER, c_payment_cnt INTEGER, \
    c_delivery_cnt INTEGER,
    c_data TEXT, PRIMARY KEY (c_w_id, c_d_id, c_id));
CREATE TABLE history (
    h_c_id INTEGER, h_c_d_id INTEGER, h_c_w_id INTEGER, h_d_id INTEGER, h_w_id INTEGER, h_date \
    INTEGER, h_amount INTEGER,
    h_data TEXT);
CREATE TABLE new_order (
    no_o_id INTEGER, no_d_id INTEGER, no_w_id INTEGER, PRIMARY KEY (no_w_id, no_d_id, no_o_id));
CREATE TABLE orders (
    o_id INTEGER, o_d_id INTEGER, o_w_id INTEGER, o_c_id INTEGER, o_entry_d INTEGER, o_carrier_id \
    INTEGER, o_ol_cnt INTEGER,
    o_all_local INTEGER, PRIMARY KEY (o_w_id, o_d_id, o_id));
CREATE TABLE order_line (
    ol_o_id INTEGER, ol_d_id INTEGER, ol_w_id INTEGER, ol_number INTEGER, ol_i_id INTEGER, \
    ol_supply_w_id INTEGER,
    ol_delivery_d INTEGER, ol_quantity INTEGER, ol_amount INTEGER, ol_dist_info TEXT,
    PRIMARY KEY (ol_w_id, ol_d_id, ol_o_id, ol_number));
CREATE TABLE item (
    i_id INTEGER PRIMARY KEY, i_im_id INTEGER, i_name TEXT, i_price INTEGER, i_data TEXT);
CREATE TABLE stock (
    s_i_id INTEGER, s_w_id INTEGER, s_quantity INTEGER, s_dist_01 TEXT, s_dist_02 TEXT, s_dist_03 \
    TEXT, s_dist_04 TEXT,
    s_dist_05 TEXT, s_dist_06 TEXT, s_dist_07 TEXT, s_dist_08 TEXT, s_dist_09 TEXT, s_dist_10 \
    TEXT, s_ytd INTEGER,
    s_order_cnt INTEGER, s_remote_cnt INTEGER, s_data TEXT, PRIMARY KEY (s_w_id, s_i_id));
";

const INDEXES: &str = "
CREATE INDEX customer_by_name ON customer (c_w_id, c_d_id, c_last, c_first);
CREATE INDEX orders_by_customer ON orders (o_w_id, o_d_id, o_c_id, o_id);
";

/// Returns the statement that inserts a row into a table, with a `?` for each column.
fn insert(table: &str, columns: usize) -> String {
    let marks = vec!["?"; columns].join(", ");
    format!("INSERT INTO {table} VALUES ({marks})")
}

/// A name and an address: name, streets, city, state, ZIP code.
struct Address([String; 5]);

impl Address {
    fn draw(rng: &mut Rng) -> Self {
        let letters = |rng: &mut Rng| -> String {
            let two = (0..2).map(|_| char::from(b'A' + rng.below(26) as u8));
            two.collect()
        };
        Self([
            a_string(rng, 10, 20),
            a_string(rng, 10, 20),
            a_string(rng, 10, 20),
            letters(rng),
            zip(rng),
        ])
    }
}

/// Makes the tables and fills them. `now`: seconds since 1970; `last_c`: NURand's constant for last
/// names. `tell` is called with the steps done and their total.
pub(super) fn load(
    db: &Connection,
    size: &Cardinality,
    rng: &mut Rng,
    last_c: u64,
    now: u64,
    tell: &mut dyn FnMut(u64, u64),
) -> Result<()> {
    let steps = 1 + u64::from(size.warehouses) * (1 + u64::from(DISTRICTS));
    let mut done = 0;
    let mut step = || {
        done += 1;
        tell(done, steps);
    };
    db.execute_batch("BEGIN")?;
    db.execute_batch(TABLES)?;
    db.execute_batch(INDEXES)?;
    let mut item = db.prepare(&insert("item", 5))?;
    for i_id in 1..=size.items {
        item.execute(params![
            i_id,
            uniform(rng, 1, 10_000),
            a_string(rng, 14, 24),
            uniform(rng, 100, 10_000),
            item_data(rng)
        ])?;
    }
    step();
    for w_id in 1..=size.warehouses {
        warehouse(db, w_id, rng)?;
        stock(db, size, w_id, rng)?;
        step();
        for d_id in 1..=DISTRICTS {
            let mut at = District {
                db,
                size,
                w_id,
                d_id,
                now,
                rng,
            };
            at.load(last_c)?;
            step();
        }
    }
    db.execute_batch("COMMIT")?;
    Ok(())
}

fn warehouse(db: &Connection, w_id: u32, rng: &mut Rng) -> Result<()> {
    let name = a_string(rng, 6, 10);
    let Address([street_1, street_2, city, state, zip]) = Address::draw(rng);
    let (tax, ytd) = (uniform(rng, 0, 2000), 30_000_000);
    db.prepare_cached(&insert("warehouse", 9))?
        .execute(params![
            w_id, name, street_1, street_2, city, state, zip, tax, ytd
        ])?;
    Ok(())
}

fn stock(db: &Connection, size: &Cardinality, w_id: u32, rng: &mut Rng) -> Result<()> {
    let mut stock = db.prepare_cached(&insert("stock", 17))?;
    for i_id in 1..=size.items {
        let quantity = uniform(rng, 10, 100);
        let dist: [String; 10] = std::array::from_fn(|_| a_string(rng, 24, 24));
        let [d1, d2, d3, d4, d5, d6, d7, d8, d9, d10] = dist;
        let data = item_data(rng);
        stock.execute(params![
            i_id, w_id, quantity, d1, d2, d3, d4, d5, d6, d7, d8, d9, d10, 0, 0, 0, data
        ])?;
    }
    Ok(())
}

struct District<'a> {
    db: &'a Connection,
    size: &'a Cardinality,
    w_id: u32,
    d_id: u32,
    now: u64,
    rng: &'a mut Rng,
}

impl District<'_> {
    fn load(&mut self, last_c: u64) -> Result<()> {
        let rng = &mut *self.rng;
        let name = a_string(rng, 6, 10);
        let Address([street_1, street_2, city, state, zip]) = Address::draw(rng);
        let (tax, ytd, next) = (uniform(rng, 0, 2000), 3_000_000, self.size.orders + 1);
        self.db
            .prepare_cached(&insert("district", 11))?
            .execute(params![
                self.d_id, self.w_id, name, street_1, street_2, city, state, zip, tax, ytd, next
            ])?;
        self.customers(last_c)?;
        self.orders()
    }

    fn customers(&mut self, last_c: u64) -> Result<()> {
        let rng = &mut *self.rng;
        let mut customer = self.db.prepare_cached(&insert("customer", 21))?;
        let mut history = self.db.prepare_cached(&insert("history", 8))?;
        for c_id in 1..=self.size.customers {
            // The first thousand customers have the thousand names.
            let last = match c_id {
                1..=1000 => u64::from(c_id) - 1,
                _ => nurand(rng, A_LAST, last_c, 0, self.size.names() - 1),
            };
            let first = a_string(rng, 8, 16);
            let Address([street_1, street_2, city, state, zip]) = Address::draw(rng);
            let phone = n_string(rng, 16);
            let credit = if rng.chance(10) { "BC" } else { "GC" };
            let discount = uniform(rng, 0, 5000);
            let data = a_string(rng, 300, 500);
            customer.execute(params![
                c_id,
                self.d_id,
                self.w_id,
                first,
                "OE",
                last_name(last),
                street_1,
                street_2,
                city,
                state,
                zip,
                phone,
                self.now,
                credit,
                5_000_000,
                discount,
                -1000,
                1000,
                1,
                0,
                data
            ])?;
            let data = a_string(rng, 12, 24);
            history.execute(params![
                c_id, self.d_id, self.w_id, self.d_id, self.w_id, self.now, 1000, data
            ])?;
        }
        Ok(())
    }

    fn orders(&mut self) -> Result<()> {
        let rng = &mut *self.rng;
        let mut order = self.db.prepare_cached(&insert("orders", 8))?;
        let mut line = self.db.prepare_cached(&insert("order_line", 10))?;
        let mut new_order = self.db.prepare_cached(&insert("new_order", 3))?;
        let customers = permutation(rng, u64::from(self.size.customers));
        for o_id in 1..=self.size.orders {
            let is_delivered = o_id <= self.size.delivered();
            let carrier = is_delivered.then(|| uniform(rng, 1, 10));
            let lines = uniform(rng, 5, 15);
            let c_id = customers[o_id as usize - 1];
            order.execute(params![
                o_id, self.d_id, self.w_id, c_id, self.now, carrier, lines, 1
            ])?;
            for number in 1..=lines {
                let amount = if is_delivered {
                    0
                } else {
                    uniform(rng, 1, 999_999)
                };
                let i_id = uniform(rng, 1, u64::from(self.size.items));
                let info = a_string(rng, 24, 24);
                let delivered = is_delivered.then_some(self.now);
                line.execute(params![
                    o_id, self.d_id, self.w_id, number, i_id, self.w_id, delivered, 5, amount, info
                ])?;
            }
            if !is_delivered {
                new_order.execute(params![o_id, self.d_id, self.w_id])?;
            }
        }
        Ok(())
    }
}
