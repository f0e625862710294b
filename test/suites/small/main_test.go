package small

import (
	"testing"

	"rivulet/test/harness/lab"
	"rivulet/test/harness/labtest"
)

// Two boards of 1 GB, a and b. They share the pages of one binary, which makes PSS a
// few MB less than on machines apart.
var suite = labtest.Suite{Prepare: labtest.Peered}

func TestMain(m *testing.M) { suite.Main(m, "small", lab.Options{Devices: 2, Memory: board}) }
