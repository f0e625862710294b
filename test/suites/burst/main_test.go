// Package burst tests a burst on running devices: home is the real binary, the campus
// the pinned k3s without Rivulet, and all that home has of it is a kubeconfig.
package burst

import (
	"testing"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

var suite labtest.Suite

// The devices boot without their cables, so that they do not become peers while the
// campus is a Rivulet still.
func TestMain(m *testing.M) {
	suite.Main(m, "burst", lab.Options{Devices: 2, Unplugged: true}, "/var/lib/campus/log")
}
