// Package volumes tests claims whose data are on another device: the real binary, one
// lab of three. The rules are tested where they are (offload, offload/consumer/move).
package volumes

import (
	"testing"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

var suite = labtest.Suite{Prepare: labtest.PeeredWithImage}

func TestMain(m *testing.M) { suite.Main(m, "volumes", lab.Options{Devices: 3}) }
