//go:build bundle && linux

package bundle

import _ "embed"

//go:embed bundle_linux_amd64.tar.zst
var packed []byte

//go:embed bundle_linux_amd64.json
var packedInfo []byte
