// Package peering tests how peerings begin and end on running devices: the real binary,
// one lab of two. What each rule of trust does is tested where the rules are.
package peering

import (
	"testing"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

var suite labtest.Suite

func TestMain(m *testing.M) { suite.Main(m, "peering", lab.Options{Devices: 2}) }
