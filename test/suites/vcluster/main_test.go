// Package vcluster tests virtual clusters on a running device: the real binary, one lab of
// two. Their control planes are tested where they are (appliance/vcluster).
package vcluster

import (
	"testing"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

var suite = labtest.Suite{Prepare: labtest.PeeredWithImage}

func TestMain(m *testing.M) { suite.Main(m, "vcluster", lab.Options{Devices: 2}) }
