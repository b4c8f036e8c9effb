"""Read where each word of a vision-language model's answer attends in the photograph."""
