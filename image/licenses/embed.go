//go:build bundle && linux

package licenses

import _ "embed"

//go:embed licenses.zst
var packed string
