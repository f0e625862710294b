// Apart from Rivulet's own module, so that the SDK is no dependency of the product.
module rivulet/test/programs/dashboards

go 1.26.0

require github.com/grafana/grafana-foundation-sdk/go v0.0.22
