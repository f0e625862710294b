package tiny

import (
	"testing"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// board is what Linux has of a board of 512 MB (Raspberry Pi Zero 2 W) after the firmware's and the GPU's part, bytes.
const board = 430 << 20

var suite = labtest.Suite{Prepare: labtest.PeeredWithImage}

func TestMain(m *testing.M) { suite.Main(m, "tiny", lab.Options{Devices: 2, Memory: board}) }
