package systemd

// ImageMark is written by the initrd of our image, and nobody else: whoever
// switched that machine on wanted a device, not a service on a machine of their own.
const ImageMark = "/run/rivulet-image/slot"
