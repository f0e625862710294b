//go:build !bundle

package bundle

var packed, packedInfo []byte
