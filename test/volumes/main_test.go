// Package volumes tests claims whose data are on another device: the real binary, one
// lab of two. The rules are tested where they are (offload, offload/move).
package volumes

import (
	"testing"

	"rivulet/test/lab"
	"rivulet/test/labtest"
)

var suite labtest.Suite

func TestMain(m *testing.M) { suite.Main(m, "volumes", lab.Options{Devices: 2}) }
