//go:build !bundle || !linux

package licenses

const packed = ""
