package bed

// Hook is for debugging.
var Hook func(*Bed)
