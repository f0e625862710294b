// Package burstnet tests the network of a burst on running devices: home is the real
// binary, behind a firewall that lets nobody in and no UDP out, the campus the pinned
// k3s without Rivulet.
package burstnet

import (
	"testing"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

var suite labtest.Suite

// The devices boot without their cables, so that they do not become peers while the
// campus is a Rivulet still.
func TestMain(m *testing.M) {
	suite.Main(m, "burstnet", lab.Options{Devices: 2, Unplugged: true}, "/var/lib/campus/log")
}
