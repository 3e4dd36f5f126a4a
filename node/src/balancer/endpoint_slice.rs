//! The addresses of the API servers, as their `EndpointSlice` has them.

use std::net::{IpAddr, SocketAddr};

use serde_json::Value;

/// More API servers than a cluster has: a list that is longer is not one of them.
pub(crate) const MOST: usize = 32;

/// The addresses of an `EndpointSlice` (<https://kubernetes.io/docs/reference/kubernetes-api/service-resources/endpoint-slice-v1/>)
/// that take connections, each with its port, in their order.
///
/// # Errors
/// If it has none. It then says nothing: a cluster whose API server answers has one.
pub(crate) fn addresses(slice: &Value) -> Result<Vec<SocketAddr>, String> {
    let port = port(slice).ok_or("the EndpointSlice of the API servers has no port https")?;
    let endpoints = slice["endpoints"].as_array();
    let ready = |endpoint: &&Value| endpoint["conditions"]["ready"] != false;
    let all = endpoints.into_iter().flatten().filter(ready);
    let texts = all.flat_map(|endpoint| endpoint["addresses"].as_array().into_iter().flatten());
    let mut addresses: Vec<SocketAddr> = texts
        .filter_map(|text| cluster::address::parse(text.as_str()?))
        .filter(|address: &IpAddr| !address.is_unspecified() && !address.is_multicast())
        .map(|address| SocketAddr::new(address, port))
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    match addresses.len() {
        0 => Err("the EndpointSlice of the API servers has no address".to_owned()),
        found if found > MOST => Err(format!(
            "the EndpointSlice of the API servers has {found} addresses, expected {MOST} at most"
        )),
        _ => Ok(addresses),
    }
}

/// The port named `https`, else the only one.
fn port(slice: &Value) -> Option<u16> {
    let ports = slice["ports"].as_array()?;
    let named = ports.iter().find(|port| port["name"] == "https");
    let only = || ports.first().filter(|_| ports.len() == 1);
    let number = named.or_else(only)?["port"].as_u64()?;
    u16::try_from(number).ok().filter(|port| *port > 0)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_address_that_is_ready_has_the_slices_port() {
        let endpoint = |address: &str, ready: Value| json!({"addresses": [address], "conditions": {"ready": ready}});
        let slice = json!({
            "addressType": "IPv4",
            "ports": [{"name": "other", "port": 1}, {"name": "https", "port": 6443, "protocol": "TCP"}],
            "endpoints": [
                endpoint("10.0.0.6", true.into()),
                endpoint("10.0.0.5", Value::Null),
                endpoint("10.0.0.7", false.into()),
                endpoint("10.0.0.6", true.into()),
                endpoint("nonsense", true.into()),
            ],
        });
        let read = addresses(&slice).unwrap();
        let expected: Vec<SocketAddr> = ["10.0.0.5:6443", "10.0.0.6:6443"]
            .map(|text| text.parse().unwrap())
            .into();
        assert_eq!(read, expected);
        let six = json!({"ports": [{"port": 8443}], "endpoints": [{"addresses": ["fd00::5"]}]});
        assert_eq!(
            addresses(&six).unwrap(),
            ["[fd00::5]:8443".parse().unwrap()]
        );
    }

    #[test]
    fn a_slice_without_an_address_or_a_port_says_nothing() {
        let ports = json!([{"name": "https", "port": 6443}]);
        for (slice, expected) in [
            (json!({"ports": ports, "endpoints": null}), "no address"),
            (
                json!({"ports": ports, "endpoints": [{"addresses": ["0.0.0.0"]}]}),
                "no address",
            ),
            (
                json!({"ports": ports, "endpoints": [{"addresses": ["10.0.0.5"], "conditions": {"ready": false}}]}),
                "no address",
            ),
            (
                json!({"endpoints": [{"addresses": ["10.0.0.5"]}]}),
                "no port",
            ),
            (json!({"ports": [{"port": 0}], "endpoints": []}), "no port"),
            (json!("nonsense"), "no port"),
        ] {
            let error = addresses(&slice).unwrap_err();
            assert!(error.contains(expected), "{slice}: {error}");
        }
        let many: Vec<_> = (0..40).map(|last| format!("10.0.0.{last}")).collect();
        let error = addresses(&json!({"ports": ports, "endpoints": [{"addresses": many}]}));
        assert!(error.unwrap_err().contains("40 addresses"));
    }
}
