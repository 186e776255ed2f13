//! The program as a process.

use crate::support::*;

// B73
#[tokio::test]
async fn sigterm_ends_an_idle_program() {
    let server = Backend::start(echo()).await;
    let mut tidegate = Tidegate::start(&Setup::one_group([&server])).await;
    let mut idle = tidegate.client().await;
    assert_eq!(idle.exchange(&post("/v1/completions", b"{}")).await.status(), 200);
    assert!(tidegate.terminate().await.success());
    assert!(tokio::net::TcpStream::connect(tidegate.address).await.is_err());
}
