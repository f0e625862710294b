// Package paths tests the ways between running devices: the real binary, one lab of
// three, two of them each behind a router of its own that translates addresses. What
// each kind of path does is tested where the paths are.
package paths

import (
	"testing"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

var suite labtest.Suite

// Without cables at first: on one LAN they would be peers before anything is between them.
func TestMain(m *testing.M) {
	suite.Main(m, "paths", lab.Options{Devices: 3, Unplugged: true}, "/var/lib/rivulet/log/tunnel.log")
}
