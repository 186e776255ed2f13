//! HTTP/1.1 as it is on the wire (RFC 9112): headers and bodies, read to the letter and written in as few pieces as can be.
//!
//! ```text
//! head       a header, read and written
//! changes    a header on its way from one side to the other
//! chunks     a body in chunks
//! trailers   what may stand behind one
//! body       where a body ends
//! inbound    a client's connection: requests come in, answers go out
//! outbound   a connection to a server: a request goes out, its answer comes in
//! scratch    what is read goes here first: connections that wait hold no memory for it
//! output     what a slow reader has not taken yet
//! ```
//!
//! It knows nothing of what Tidegate does with requests. Pingora's own HTTP/1 is not used: it reads over faults in chunks,
//! keeps 64 KiB for each body, and sends a request's header and body by themselves (`docs/performance.md`).

mod body;
mod changes;
mod chunks;
mod head;
mod inbound;
mod outbound;
mod output;
mod scratch;
mod trailers;

pub(crate) use changes::{Changes, fields};
pub(crate) use inbound::{Head, Inbound, Read};
pub(crate) use outbound::{Asked, End, Outbound, Part, ResponseHead};
pub(crate) use trailers::Trailers;
