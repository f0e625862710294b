// Package class tests virtual clusters of many on one device: the real binary, one lab of one. LONG=1 makes a class of
// thirty.
package class

import (
	"testing"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

var suite = labtest.Suite{Prepare: labtest.PeeredWithImage}

func TestMain(m *testing.M) { suite.Main(m, "class", lab.Options{Devices: 1}) }
